"""Models that the embedded engine and the learner do not read alike are refused by name."""

from __future__ import annotations

import re

import pytest
import torch
from transformers.models.recurrent_gemma import modeling_recurrent_gemma

from node.config.config import Config
from node.engines.transformers.agreement import agreement, check_agreement
from node.policy.model_files import PolicyError
from node.policy.policy import Policy
from node.run.update_groups import TrainedPolicy
from swarm.common.counters import Counters
from tests.families.small import small_policy
from tests.node.engines.families import MIXED, family_policy
from tests.support import random_policy

REMEDY = r'Set engine\.kind = "vllm", or choose another model'


@pytest.mark.parametrize("family", MIXED)
def test_models_with_layers_of_several_kinds_are_taken(family):
    check_agreement(family_policy(family))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_is_tried_without_a_trace_on_anybodys_random_numbers(dtype):
    policy = random_policy(dtype=dtype)
    before = torch.get_rng_state()
    gaps = agreement(policy)
    assert gaps.shape == (24,)  # alone, and with those that share its prompt
    assert torch.equal(gaps, agreement(policy))
    assert torch.equal(torch.get_rng_state(), before) and policy.stop_ids
    check_agreement(policy)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("recurrent_gemma", r"is 0\.\d+ nat a token off what the learner reads, over 0\.001"),
        ("zamba2", "bounds the time step of a scan, and not that of a single token"),
        ("nemotron_h", "bounds the time step of a scan, and not that of a single token"),
        ("minimax", "fails: ValueError: MiniMax uses cache of its own"),
        ("rwkv", "fails: AttributeError"),
        ("openai-gpt", "fails: AttributeError"),
        ("roberta", r"is [\d.]+ nat a token off what the learner reads"),
        ("bart", r"is [\d.]+ nat a token off what the learner reads"),
    ],
)
def test_a_family_that_is_read_otherwise_is_refused_in_one_line(family, why):
    with pytest.raises(PolicyError, match=rf"'{family}' {why}.*{REMEDY}") as refused:
        check_agreement(small_policy(family))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_rounding_is_forgiven_and_a_state_that_is_not_repeated_is_not(dtype):
    policy = small_policy("recurrent_gemma")
    policy.model.to(dtype)
    said = r"nat at the mean off what the learner reads, over 0\.05"
    with pytest.raises(PolicyError, match=said):
        check_agreement(policy)


def test_an_encoder_whose_tokens_see_what_follows_is_refused():
    policy = small_policy("bert")
    check_agreement(policy)
    policy.model.config.is_decoder = False
    encoder = Policy(type(policy.model)(policy.model.config), policy.tokenizer, "an encoder")
    with pytest.raises(PolicyError, match=f"'an encoder' .*'bert'.*{REMEDY}"):
        check_agreement(encoder)


def test_memory_that_runs_out_is_not_the_families_fault(monkeypatch):
    policy = small_policy("recurrent_gemma")

    def full(*_, **__):
        raise torch.OutOfMemoryError("all taken")

    monkeypatch.setattr(modeling_recurrent_gemma.RecurrentGemmaForCausalLM, "forward", full)
    with pytest.raises(torch.OutOfMemoryError, match="all taken"):
        check_agreement(policy)


def test_a_node_tries_its_model_before_it_trains_and_one_with_an_engine_of_its_own_does_not():
    policy = small_policy("recurrent_gemma")
    with pytest.raises(PolicyError, match="recurrent_gemma"):
        TrainedPolicy(Config(), policy, Counters())
    trained = TrainedPolicy(Config(), random_policy(), Counters())
    assert TrainedPolicy(Config(), policy, Counters(), engine=trained.engine).engine


def test_join_ends_with_one_line_before_anything_is_trained(node, terminal, tmp_path):
    small_policy("recurrent_gemma").save(tmp_path / "model")
    model = f"--set=policy.model={tmp_path / 'model'}"
    assert terminal("join", "--config", "node/node.toml", model) == 2
    (line,) = [each for each in terminal.err.splitlines() if "policy.model" in each]
    assert re.search(rf"'recurrent_gemma' is [\d.]+ nat a token off.*{REMEDY}", line), line
