"""Completions that are written with weights in 8 bits, and what is told of them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.kinds import kind_of
from node.engines.registry import open_engine, open_streaming_engine
from node.engines.transformers import fused_decoder as fused_decoder_module
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import (
    check_rounding,
    rounded,
    rounded_product,
    weight_steps,
)
from node.errors import ConfigError
from node.policy.policy import Policy
from swarm.common.counters import Counters
from tests.support import character_tokenizer, lone_logprobs, random_policy

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)

PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30]
SAMPLING = Sampling(max_new_tokens=24)


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def written(policy: Policy, *, fused_decoder_module: bool) -> list:
    engine = TransformersEngine(policy, seed=0, eight_bits=fused_decoder_module)
    return engine.generate(PROMPTS, 4, SAMPLING)


def told(groups: list) -> list:
    return [(sample.tokens.ids, sample.tokens.logprobs) for group in groups for sample in group]


def gaps(policy: Policy, groups: list) -> torch.Tensor:
    """By which the log-probs that were told are off the whole policy's own."""
    found = []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            own = lone_logprobs(policy, prompt, sample.tokens.ids)
            found.append(torch.tensor(sample.tokens.logprobs) - torch.as_tensor(own))
    return torch.cat(found).abs()


@pytest.mark.parametrize("rows", [1, 8, 33])
@pytest.mark.parametrize("biased", [True, False])
def test_a_product_is_as_near_as_the_steps_of_both_sides_allow(rows, biased):
    x, weight = drawn(rows, 96), drawn(40, 96)
    weight[3] = 0.0
    weight[4] *= 1e4
    bias = drawn(40) if biased else None
    found = rounded_product(x, rounded(weight), bias)
    exact = x.double() @ weight.double().T + (0.0 if bias is None else bias)
    of_weight = weight.abs().amax(1) / (2 * weight_steps())
    of_x = x.abs().amax(1, keepdim=True) / 254
    bound = x.abs().sum(1, keepdim=True) * of_weight + of_x * (weight.abs().sum(1) + 96 * of_weight)
    assert ((found - exact).abs() <= bound + 1e-4).all()
    assert (found - exact).norm() > 0, "or nothing was rounded"
    assert torch.equal(found[:, 3], torch.zeros(rows) + (0.0 if bias is None else bias[3]))


def test_a_row_comes_to_the_same_whatever_is_beside_it():
    x, weight = drawn(8, 96), rounded(drawn(40, 96))
    x[1] *= 1e3
    x[2] = 0.0
    together = rounded_product(x, weight, None)
    assert torch.equal(
        together, torch.cat([rounded_product(each, weight, None) for each in x[:, None]])
    )
    assert not together[2].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_numbers_of_both_sides_are_summed_exactly(sign):
    weight = rounded(sign * torch.ones(16, 512))
    assert torch.allclose(
        rounded_product(torch.ones(4, 512), weight, None), torch.tensor(512.0 * sign)
    )


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="no AVX2 to narrow to")
def test_a_processor_that_adds_products_in_16_bits_gets_half_the_steps_and_sums_exactly():
    names = ("the_steps_of_both_sides", "summed_exactly", "whatever_is_beside")
    # The widest instructions that oneDNN may use: none of VNNI's.
    narrow = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    steps = (
        "from node.engines.transformers.fused_decoder import weight_steps; print(weight_steps())"
    )
    told = subprocess.run([sys.executable, "-c", steps], env=narrow, capture_output=True, text=True)
    assert told.stdout.split() == ["63"]
    tests = [sys.executable, "-m", "pytest", __file__, "-k", " or ".join(names)]
    assert subprocess.run(tests, env=narrow).returncode == 0


def test_a_processor_whose_products_are_wrong_is_refused(monkeypatch):
    monkeypatch.setattr(fused_decoder_module, "share_of_float32", lambda: 0.5)
    fused_decoder_module.check_processor()
    monkeypatch.setattr(fused_decoder_module, "exact", lambda steps: False)
    with pytest.raises(ConfigError, match=r"engine\.kind_options.*are wrong"):
        fused_decoder_module.check_processor()


def test_an_evaluation_refuses_what_a_node_does(monkeypatch):
    monkeypatch.setattr(fused_decoder_module, "share_of_float32", lambda: 1.5)
    config = Config.model_validate({"engine": {"kind_options": {"int8": True}}})
    with pytest.raises(ConfigError, match=r"engine\.kind_options.*1\.5 times as long"):
        open_engine(config, random_policy(), Counters())


def test_a_product_has_the_format_of_what_is_multiplied():
    x, weight = drawn(4, 32).bfloat16(), drawn(8, 32).bfloat16()
    assert rounded_product(x, rounded(weight), None).dtype == torch.bfloat16


def test_log_probs_are_those_of_the_rounded_weights_and_near_the_whole_ones():
    policy = random_policy()
    of_rounded = gaps(policy, written(policy, eight_bits=True))
    assert 1e-4 < of_rounded.mean() < 0.1
    assert gaps(policy, written(policy, eight_bits=False)).max() < 1e-4


def test_the_policy_keeps_its_weights_and_without_the_key_nothing_changes():
    policy = random_policy()
    before = {name: each.clone() for name, each in policy.model.state_dict().items()}
    without = told(written(policy, eight_bits=False))
    written(policy, eight_bits=True)
    for name, each in policy.model.state_dict().items():
        assert torch.equal(each, before[name])
    config = Config.model_validate({"engine": {"kind_options": {"int8": False}}})
    engine = open_engine(config, policy, Counters())
    assert told(written(policy, eight_bits=False)) == without
    plain = open_engine(Config(), policy, Counters())
    assert told(engine.generate(PROMPTS, 4, SAMPLING)) == told(plain.generate(PROMPTS, 4, SAMPLING))


def test_new_weights_are_rounded_anew_and_rounding_never_adds_up():
    policy = random_policy()
    engine = TransformersEngine(policy, seed=0, eight_bits=True)
    for _ in range(2):
        with torch.no_grad():
            for each in policy.model.parameters():
                each.mul_(1.01)
        engine.generate(PROMPTS, 1, SAMPLING)
    state = engine.state_dict()
    other = TransformersEngine(policy, seed=1, eight_bits=True)
    other.load_state_dict(state)
    assert told(engine.generate(PROMPTS, 4, SAMPLING)) == told(other.generate(PROMPTS, 4, SAMPLING))


def test_an_engine_in_a_process_of_its_own_rounds_too():
    policy = random_policy()
    config = Config.model_validate({"engine": {"kind_options": {"int8": True}}})
    engine = open_streaming_engine(config, policy, Counters(), 1)
    try:
        groups = engine.generate(PROMPTS, 4, SAMPLING)
    finally:
        engine.close()
    assert 1e-4 < gaps(policy, groups).mean() < 0.1


def test_a_model_whose_steps_are_not_rounded_is_refused_by_name(monkeypatch):
    config = Config.model_validate({"engine": {"kind_options": {"int8": True}}})
    monkeypatch.setattr(fused_decoder_module, "share_of_float32", lambda: 0.5)
    kind_of(config).check_policy(random_policy())
    model = GPT2LMHeadModel(GPT2Config(vocab_size=98, n_embd=64, n_layer=1, n_head=2))
    other = Policy(model, character_tokenizer(), "gpt2")
    kind_of(Config()).check_policy(other)
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel is not one of Llama, Qwen2, Qwen3"):
        kind_of(config).check_policy(other)


def test_a_processor_that_gains_nothing_is_told(monkeypatch):
    monkeypatch.setattr(fused_decoder_module, "share_of_float32", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"products take 1\.5 times as long in 8 bits"):
        check_rounding(random_policy())
