import os
import platform
import subprocess
import sys
from contextlib import closing

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.kinds import kind_of
from node.engines.registry import open_engine, open_streaming_engine
from node.engines.transformers import fused_decoder
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.fused_decoder import check_rounding, rounded, rounded_product
from node.errors import ConfigError
from node.policy.policy import Policy
from swarm.common.counters import Counters
from tests.node.programs import python
from tests.support import character_tokenizer, lone_logprobs, random_policy

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN"
)

PROMPTS = [(5, 6, 7), (1, 2, 3, 4, 5, 6, 7, 8), (9,) * 30]
SAMPLING = Sampling(max_new_tokens=24)
INT8 = Config.model_validate({"engine": {"backend_options": {"int8": True}}})


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def samples_of(policy: Policy, *, eight_bits: bool) -> list:
    return TransformersEngine(policy, seed=0, eight_bits=eight_bits).generate(PROMPTS, 4, SAMPLING)


def flat(groups: list) -> list:
    return [(sample.tokens.ids, sample.tokens.logprobs) for group in groups for sample in group]


def gaps(policy: Policy, groups: list) -> torch.Tensor:
    """Return absolute differences of reported and full-precision log-probs."""
    found = [
        torch.tensor(sample.tokens.logprobs) - lone_logprobs(policy, prompt, sample.tokens.ids)
        for prompt, group in zip(PROMPTS, groups, strict=True)
        for sample in group
    ]
    return torch.cat(found).detach().abs()


@pytest.mark.parametrize("rows", [1, 8, 33])
@pytest.mark.parametrize("biased", [True, False])
def test_product_error_is_within_the_steps_of_both_sides(rows, biased):
    x, weight = normal(rows, 96), normal(40, 96)
    weight[3] = 0.0
    weight[4] *= 1e4
    bias = normal(40) if biased else None
    found = rounded_product(x, rounded(weight), bias)
    exact = x.double() @ weight.double().T + (0.0 if bias is None else bias)
    of_weight = weight.abs().amax(1) / (2 * fused_decoder.weight_steps())
    of_x = x.abs().amax(1, keepdim=True) / 254
    bound = x.abs().sum(1, keepdim=True) * of_weight + of_x * (weight.abs().sum(1) + 96 * of_weight)
    assert ((found - exact).abs() <= bound + 1e-4).all()
    assert (found - exact).norm() > 0, "the product must be rounded"
    assert torch.equal(found[:, 3], torch.zeros(rows) + (0.0 if bias is None else bias[3]))


def test_a_row_comes_to_the_same_whatever_is_beside_it():
    x, weight = normal(8, 96), rounded(normal(40, 96))
    x[1] *= 1e3
    x[2] = 0.0
    together = rounded_product(x, weight, None)
    alone = [rounded_product(each, weight, None) for each in x[:, None]]
    assert torch.equal(together, torch.cat(alone)) and not together[2].any()


@pytest.mark.parametrize("sign", [1, -1])
def test_products_of_largest_values_are_summed_exactly(sign):
    found = rounded_product(torch.ones(4, 512), rounded(sign * torch.ones(16, 512)), None)
    assert torch.allclose(found, torch.tensor(512.0 * sign))


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="needs an x86-64 CPU")
def test_16_bit_accumulation_halves_weight_steps_and_stays_exact():
    names = ("the_steps_of_both_sides", "summed_exactly", "whatever_is_beside")
    # With AVX2 as oneDNN's maximum, VNNI instructions are not used.
    narrow = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    steps = "from node.engines.transformers.fused_decoder import weight_steps as s; print(s())"
    assert python(steps, env=narrow).stdout.split() == ["63"]
    tests = [sys.executable, "-m", "pytest", __file__, "-k", " or ".join(names)]
    assert subprocess.run(tests, env=narrow).returncode == 0


def test_processor_check_rejects_wrong_products(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 0.5)
    fused_decoder.check_processor()
    monkeypatch.setattr(fused_decoder, "exact", lambda steps: False)
    with pytest.raises(ConfigError, match=r"engine\.backend_options.*are wrong"):
        fused_decoder.check_processor()


def test_nodes_and_evaluations_reject_int8_without_speedup(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 1.5)
    with pytest.raises(ConfigError, match=r"products take 1\.5 times as long in 8 bits"):
        check_rounding(random_policy())
    with pytest.raises(ConfigError, match=r"engine\.backend_options.*1\.5 times as long"):
        open_engine(INT8, random_policy(), Counters())


def test_product_has_the_dtype_of_its_inputs():
    x, weight = normal(4, 32).bfloat16(), normal(8, 32).bfloat16()
    assert rounded_product(x, rounded(weight), None).dtype == torch.bfloat16


def test_int8_logprobs_differ_slightly_from_full_precision():
    policy = random_policy()
    assert 1e-4 < gaps(policy, samples_of(policy, eight_bits=True)).mean() < 0.1
    assert gaps(policy, samples_of(policy, eight_bits=False)).max() < 1e-4


def test_int8_keeps_policy_weights_and_is_off_by_default():
    policy = random_policy()
    before = {name: each.clone() for name, each in policy.model.state_dict().items()}
    without = flat(samples_of(policy, eight_bits=False))
    samples_of(policy, eight_bits=True)
    assert all(torch.equal(t, before[name]) for name, t in policy.model.state_dict().items())
    assert flat(samples_of(policy, eight_bits=False)) == without
    off = Config.model_validate({"engine": {"backend_options": {"int8": False}}})
    engine, plain = (open_engine(config, policy, Counters()) for config in (off, Config()))
    assert flat(engine.generate(PROMPTS, 4, SAMPLING)) == flat(plain.generate(PROMPTS, 4, SAMPLING))


@torch.no_grad()
def test_rounding_errors_do_not_accumulate_across_updates():
    policy = random_policy()
    engine, other = (TransformersEngine(policy, seed=n, eight_bits=True) for n in (0, 1))
    for _ in range(2):
        for each in policy.model.parameters():
            each.mul_(1.01)
        engine.generate(PROMPTS, 1, SAMPLING)
    other.load_state_dict(engine.state_dict())
    assert flat(engine.generate(PROMPTS, 4, SAMPLING)) == flat(other.generate(PROMPTS, 4, SAMPLING))


def test_engine_process_also_uses_int8_weights(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 0.5)
    policy = random_policy()
    with closing(open_streaming_engine(INT8, policy, Counters())) as engine:
        groups = engine.generate(PROMPTS, 4, SAMPLING)
    assert 1e-4 < gaps(policy, groups).mean() < 0.1


def test_int8_rejects_unsupported_model_by_name(monkeypatch):
    monkeypatch.setattr(fused_decoder, "share_of_float32", lambda: 0.5)
    kind_of(INT8).check_policy(random_policy())
    model = GPT2LMHeadModel(GPT2Config(vocab_size=98, n_embd=64, n_layer=1, n_head=2))
    other = Policy(model, character_tokenizer(), "gpt2")
    kind_of(Config()).check_policy(other)
    with pytest.raises(ConfigError, match=r"GPT2LMHeadModel is not one of Llama, Qwen2, Qwen3"):
        kind_of(INT8).check_policy(other)
