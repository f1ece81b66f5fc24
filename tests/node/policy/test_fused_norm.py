"""Fused norm layers give the results and gradients of the library's layers."""

import copy

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers import AutoModelForCausalLM

from node.policy.fast_layers import FusedNorm, fuse_norm, fuse_norms
from tests.node.learner.test_logprobs import SHAPE, WORDS

FUSED = {
    "Llama": transformers.LlamaConfig(**SHAPE),
    "Mistral": transformers.MistralConfig(**SHAPE),
    "Qwen2": transformers.Qwen2Config(**SHAPE),
    "Qwen3": transformers.Qwen3Config(**SHAPE),
    "OLMo2": transformers.Olmo2Config(**SHAPE),
}
UNFUSED = {
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


def fuse_all(model) -> int:
    return sum(fuse_norm(layer) for layer in list(model.modules()))


def outputs(model):
    ids = torch.arange(12).view(2, 6) % WORDS
    logits = model(input_ids=ids, use_cache=False).logits
    logits.square().sum().backward()
    return logits, {name: weight.grad for name, weight in model.named_parameters()}


@pytest.mark.parametrize("name", FUSED)
def test_fused_norms_keep_outputs_and_gradients(name):
    model = model_of(FUSED[name])
    fused = copy.deepcopy(model)
    norms = [m for m in model.modules() if type(m).__name__.endswith("RMSNorm")]
    assert fuse_all(fused) == len(norms) > 3
    (logits, grads), (expected, expected_grads) = outputs(fused), outputs(model)
    assert_close(logits, expected, rtol=1e-4, atol=1e-5)
    for weight, actual in grads.items():
        assert_close(actual, expected_grads[weight], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", UNFUSED)
def test_norms_with_another_formula_are_not_fused(name):
    assert fuse_all(model_of(UNFUSED[name])) == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fused_half_precision_norm_is_at_least_as_exact(dtype):
    model = model_of(FUSED["Llama"], dtype)
    layer, x = model.model.norm, torch.randn(2, 5, SHAPE["hidden_size"]).to(dtype)
    double = x.double() * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
    expected = (double * layer.weight.double()).to(dtype)
    before = (layer(x).double() - expected.double()).abs().max()
    assert fuse_norm(layer)
    assert (layer(x).double() - expected.double()).abs().max() <= before


def test_fused_layer_keeps_its_type_and_is_fused_once():
    model = model_of(FUSED["Llama"])
    layer = model.model.norm
    kind = type(layer)
    assert fuse_norm(layer) and not fuse_norm(layer)
    assert isinstance(layer, kind) and isinstance(layer, FusedNorm)
    assert type(copy.deepcopy(layer)) is type(layer)


def test_norms_are_not_fused_on_a_cpu():
    assert fuse_norms(model_of(FUSED["Llama"])) == 0
