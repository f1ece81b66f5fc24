"""Layers that one kernel normalizes give the results and gradients of the library's."""

import copy

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from node.policy.fast_layers import FusedNorm, fuse_norm, fuse_norms
from tests.node.learner.test_logprobs import SHAPE, WORDS

SWITCHED = {
    "Llama": transformers.LlamaConfig(**SHAPE),
    "Mistral": transformers.MistralConfig(**SHAPE),
    "Qwen2": transformers.Qwen2Config(**SHAPE),
    "Qwen3": transformers.Qwen3Config(**SHAPE),
    "OLMo2": transformers.Olmo2Config(**SHAPE),
}
LEFT = {
    "Gemma2, whose weights are one less": transformers.Gemma2Config(**SHAPE),
    "Phi, which subtracts the mean": transformers.PhiConfig(**SHAPE),
}


def model_of(config, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and name.endswith("weight"):
                weight.normal_(1.0, 0.3)
    return model


def switched(model) -> int:
    return sum(fuse_norm(layer) for layer in list(model.modules()))


def learned(model):
    ids = torch.arange(12).view(2, 6) % WORDS
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return logits, {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("name", SWITCHED)
def test_a_model_with_fused_norms_is_the_same_function(name):
    model = model_of(SWITCHED[name])
    fused = copy.deepcopy(model)
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    assert switched(fused) == len(norms) > 3
    (logits, grads), (expected, expected_grads) = learned(fused), learned(model)
    assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    for weight, found in grads.items():
        assert_close(found, expected_grads[weight], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", LEFT)
def test_layers_that_compute_something_else_are_left_alone(name):
    assert switched(model_of(LEFT[name])) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_layers_in_half_precision_are_switched_and_round_once(dtype):
    model = model_of(SWITCHED["Llama"], dtype)
    layer, x = model.model.norm, torch.randn(2, 5, SHAPE["hidden_size"]).to(dtype)
    double = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    expected = (double * layer.weight.double()).to(dtype)
    before = (layer(x).double() - expected.double()).abs().max()
    assert fuse_norm(layer)
    assert (layer(x).double() - expected.double()).abs().max() <= before


def test_a_switched_layer_keeps_its_kind_and_is_switched_once():
    model = model_of(SWITCHED["Llama"])
    layer = model.model.norm
    kind = type(layer)
    assert fuse_norm(layer) and not fuse_norm(layer)
    assert isinstance(layer, kind) and isinstance(layer, FusedNorm)
    assert type(copy.deepcopy(layer)) is type(layer)


def test_a_cpu_keeps_the_librarys_layers():
    assert fuse_norms(model_of(SWITCHED["Llama"])) == 0
