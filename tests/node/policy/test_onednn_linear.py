"""Large layers computed by oneDNN give the same numbers as torch's layers."""

import copy
from unittest.mock import Mock

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close
from transformers import Qwen2Config

from node.engines.engine import Sampling
from node.engines.transformers import fused_decoder
from node.engines.transformers.agreement import check_agreement
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import PACKED_STEPS, has_fused_step
from node.engines.transformers.kv_cache import growing_cache
from node.policy import fast_layers
from node.policy.fast_layers import (
    FlatLinear,
    OneDnnLinear,
    linear,
    packed,
    packed_product,
    quicken,
)
from tests.library_privates import TorchDispatchMode
from tests.node.engines.test_transformers_engine import generated
from tests.support import SHAPE, assert_drawn_from, policy_of

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)

WIDTH = 512


@pytest.fixture(autouse=True)
def quicker_here(monkeypatch):
    """Make the tests independent of the processor's vendor."""
    monkeypatch.setattr(fast_layers, "quicker", lambda: True)


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def both(shape, biased, frozen):
    """Yield product and gradients: by oneDNN in float32, then by torch in float64."""
    for dtype, product in ((torch.float32, linear), (torch.float64, functional.linear)):
        x = normal(*shape, WIDTH).to(dtype).requires_grad_()
        weight = normal(640, WIDTH).to(dtype).requires_grad_(not frozen)
        bias = normal(640).to(dtype).requires_grad_(not frozen) if biased else None
        y = product(x, weight, bias)
        y.square().sum().backward()
        yield [y.detach(), x.grad, weight.grad, None if bias is None else bias.grad]


def error(found, exact):
    return (found.double() - exact).abs().max() / exact.abs().max()


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("shape", [(1,), (8,), (3, 50), (2, 3, 7), (130, 1)])
def test_products_and_gradients_match_exact_arithmetic(shape, biased, frozen):
    for ours, exact in zip(*both(shape, biased, frozen), strict=True):
        assert ours is None if exact is None else error(ours, exact) < 1e-5


def test_linear_supports_transposed_inputs_and_small_products():
    x, weight = normal(WIDTH, 64).float().t(), normal(640, WIDTH).float()
    assert_close(linear(x, weight, None), functional.linear(x, weight), rtol=0, atol=1e-3)
    x = normal(2, WIDTH).float()
    assert torch.equal(linear(x, weight, None), functional.linear(x, weight))


class Operators(TorchDispatchMode):
    """Records which operators run."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.add(func.overloadpacket)
        return func(*args, **kwargs or {})


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_frozen_16_bit_layers_flatten_rows_and_match_trained_ones(dtype, biased):
    layer = nn.Linear(WIDTH, 24, bias=biased, dtype=dtype)
    trained, frozen = (nn.ModuleList([copy.deepcopy(layer)]) for _ in range(2))
    quicken(trained), quicken(frozen.requires_grad_(False))
    assert type(frozen[0]) is FlatLinear
    whole = normal(3, 50, WIDTH).to(dtype)
    for x in (whole, whole[:, -7:], whole[:1], whole[0], whole[0, 0]):
        with torch.no_grad(), Operators() as operators:
            found = frozen[0](x)
        assert torch.ops.aten.bmm not in operators.seen
        assert found.shape == (*x.shape[:-1], 24)
        if biased:  # the trained layer adds it to a rounded product
            assert_close(found, trained[0](x).detach(), rtol=0.02, atol=0.02)
        else:
            assert torch.equal(found, trained[0](x))
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        for each, model in zip(inputs, (frozen, trained), strict=True):
            model[0](each).float().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)


def test_quicken_switches_large_float32_layers_only_if_faster(monkeypatch):
    class Own(nn.Linear):
        pass

    plain = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)
    layers = {"large": nn.Linear(WIDTH, WIDTH), "small": nn.Linear(64, 256), "bf16": plain}
    model = nn.ModuleDict({**layers, "own": Own(WIDTH, WIDTH)})
    before = set(model.state_dict())
    assert quicken(model) == 1
    kinds = {"large": OneDnnLinear, "small": nn.Linear, "bf16": FlatLinear, "own": Own}
    assert {name: type(x) for name, x in model.items()} == kinds
    assert set(model.state_dict()) == before and quicken(model) == 0
    monkeypatch.setattr(fast_layers, "quicker", lambda: False)
    assert quicken(nn.Linear(WIDTH, WIDTH)) == 0


def wide_policy():
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4, "initializer_range": 0.05}
    sizes = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH}
    return policy_of(Qwen2Config(**{**SHAPE, **sizes, **heads}), "wide", 0)


def test_engine_and_learner_agree_with_large_layers():
    policy = wide_policy()
    assert sum(type(x) is OneDnnLinear for x in policy.model.modules()) == 10
    assert has_fused_step(policy.model, growing_cache(policy.model.config))
    check_agreement(policy)


def test_model_gradients_match_plain_layers(monkeypatch):
    ids = torch.arange(90)[None]
    gradients = []
    for quick in (True, False):
        monkeypatch.setattr(fast_layers, "quicker", lambda quick=quick: quick)
        model = wide_policy().model
        model(input_ids=ids, labels=ids).loss.backward()
        gradients.append({name: p.grad for name, p in model.named_parameters()})
    for name, plain in gradients[1].items():
        assert_close(gradients[0][name], plain, rtol=1e-3, atol=1e-6)


def test_lora_works_with_large_layers():
    peft = pytest.importorskip("peft")
    model = wide_policy().model
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules="all-linear"))
    ids = torch.arange(90)[None]
    adapted(input_ids=ids, labels=ids).loss.backward()
    trained = {name for name, p in model.named_parameters() if p.grad is not None}
    assert trained and all("lora_" in name for name in trained)


def test_speed_check_does_not_change_random_state(monkeypatch):
    monkeypatch.undo()
    fast_layers.quicker.cache_clear()
    before = torch.get_rng_state()
    assert fast_layers.quicker() in (True, False)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("rows", [1, 2, 8, 31, 200])
@pytest.mark.parametrize("biased", [True, False])
def test_packed_matrix_products_match_exact_arithmetic(rows, biased, monkeypatch):
    monkeypatch.setattr(fast_layers, "packing_pays", lambda dtype: True)
    x, weight, bias = normal(rows, WIDTH), normal(640, WIDTH), normal(640) if biased else None
    laid_out = packed(weight.float())
    assert laid_out is not None
    ours = packed_product(x.float(), laid_out, None if bias is None else bias.float())
    assert error(ours, functional.linear(x, weight, bias)) < 1e-5
    assert packed(normal(64, 64).float()) is None, "small matrices are not packed"


@pytest.mark.parametrize("trained", [True, False])
def test_weights_are_packed_for_long_completions_of_trained_models(trained, monkeypatch):
    laid_out, policy = [], wide_policy()
    monkeypatch.setattr(fast_layers, "packing_pays", lambda dtype: True)
    monkeypatch.setattr(fused_decoder, "packed", lambda w: laid_out.append(w.shape) or packed(w))
    policy.model.requires_grad_(trained)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8]]
    for tokens in (PACKED_STEPS - 1, PACKED_STEPS):
        greedy = Sampling(max_new_tokens=tokens, greedy=True)
        groups = TransformersEngine(policy, seed=0).generate(prompts, 1, greedy)
        for prompt, (sample,) in zip(prompts, groups, strict=True):
            assert sample.tokens.ids == generated(policy, prompt, tokens)
            assert_drawn_from(sample.tokens, prompt, policy)
    assert len(laid_out) == (11 if trained else 0)


def test_packing_is_off_on_unsupported_processors(monkeypatch):
    refuse = Mock(side_effect=RuntimeError("not on this processor"))
    monkeypatch.setattr(fast_layers, "lay_out", refuse)
    fast_layers.packing_pays.cache_clear()
    assert not fast_layers.packing_pays(torch.float32)
    fast_layers.packing_pays.cache_clear()
