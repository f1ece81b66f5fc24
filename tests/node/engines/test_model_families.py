import re
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import transformers
from transformers.models.recurrent_gemma import modeling_recurrent_gemma

from node.config.config import Config
from node.engines.engine import Sampling
from node.engines.transformers import agreement as module
from node.engines.transformers.agreement import agreement, check_agreement
from node.engines.transformers.engine import TransformersEngine
from node.engines.transformers.kv_cache import GrowingLayer
from node.policy.model_files import PolicyError
from node.policy.policy import Policy
from node.run.update_groups import TrainedPolicy
from swarm.common.counters import Counters
from tests import support
from tests.families.small import small_policy
from tests.node.engines.test_transformers_backend import PROMPTS, Writing
from tests.support import assert_drawn_from, policy_of, random_policy

SHAPE = {**support.SHAPE, "num_hidden_layers": 4, "head_dim": 16, "initializer_range": 0.15}
SLIDING = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
DELTA = {"linear_num_value_heads": 4, "linear_num_key_heads": 2}
DELTA |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
MAMBA |= {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 64}
CHUNKED = {"attention_chunk_size": 16, "no_rope_layers": [1, 1, 1, 0], "num_local_experts": 2}
MIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma 2": ("Gemma2Config", {"sliding_window": 12}),
    "gemma 3": ("Gemma3TextConfig", SLIDING),
    "gemma 4": ("Gemma4TextConfig", SLIDING),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 4, "sliding_window": 12}),
    "olmo 3": ("Olmo3Config", SLIDING),
    "cohere 2": ("Cohere2Config", SLIDING),
    "exaone 4": ("Exaone4Config", SLIDING),
    "llama 4": ("Llama4TextConfig", CHUNKED),
    "qwen 3 next": ("Qwen3NextConfig", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen 3.5": ("Qwen3_5TextConfig", DELTA),
    "lfm 2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    "granite 4": ("GraniteMoeHybridConfig", {**MAMBA, "layer_types": ["mamba", "attention"] * 2}),
}
"""Configuration class of each family, and its settings in addition to :data:`SHAPE`."""


def family_policy(family: str, seed: int = 1) -> Policy:
    name, own = MIXED[family]
    return policy_of(getattr(transformers, name)(**SHAPE, **own), family, seed)


REMEDY = r'Set engine\.backend = "vllm", or choose another model'


@pytest.mark.parametrize("family", MIXED)
def test_agreement_check_accepts_mixed_layer_types(family):
    check_agreement(family_policy(family))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_agreement_check_does_not_change_random_state(dtype):
    policy = random_policy(dtype=dtype)
    before = torch.get_rng_state()
    gaps = agreement(policy)
    assert gaps.shape == (24,)  # each token alone and in a shared row
    assert torch.equal(gaps, agreement(policy))
    assert torch.equal(torch.get_rng_state(), before) and policy.stop_ids
    check_agreement(policy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_error_names_a_non_finite_weight(value):
    policy = random_policy()
    with torch.no_grad():
        policy.model.model.layers[0].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(PolicyError, match=r"down_proj\.weight has infinite or NaN values"):
        check_agreement(policy)


@pytest.mark.parametrize(
    ("family", "why"),
    [
        ("recurrent_gemma", r"differs by 0\.\d+ nats per token from the learner, more than 0\.001"),
        ("zamba2", "bounds the time step of a scan, and not that of a single token"),
        ("nemotron_h", "bounds the time step of a scan, and not that of a single token"),
        ("minimax", "fails: ValueError: MiniMax uses cache of its own"),
        ("rwkv", "fails: AttributeError"),
        ("openai-gpt", "fails: AttributeError"),
        ("roberta", r"differs by [\d.]+ nats per token from the learner"),
        ("bart", r"differs by [\d.]+ nats per token from the learner"),
    ],
)
def test_mismatched_family_gives_a_one_line_error(family, why):
    with pytest.raises(PolicyError, match=rf"'{family}' {why}.*{REMEDY}") as refused:
        check_agreement(small_policy(family))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.bfloat16, 0.05), (torch.float16, 0.03)])
def test_16_bit_mismatch_is_rejected_and_error_suggests_float32(dtype, limit):
    policy = small_policy("recurrent_gemma")
    policy.model.to(dtype)
    message = f"nats at the mean from the learner, more than {limit}"
    with pytest.raises(PolicyError, match=re.escape(message)) as refused:
        check_agreement(policy)
    assert 'set policy.dtype = "float32"' in str(refused.value)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_mismatch_near_the_limit_is_decided_in_float32(dtype, monkeypatch):
    policy, broken = random_policy(dtype=dtype), small_policy("recurrent_gemma")
    broken.model.to(dtype)
    for each, refused in ((policy, False), (broken, True)):
        gap = float(agreement(each).mean())
        limits = {"bfloat16": 0.9 * gap, "float16": 0.9 * gap}
        monkeypatch.setattr(module, "MOST_AT_THE_MEAN", limits)
        with pytest.raises(PolicyError) if refused else nullcontext():
            check_agreement(each)
        monkeypatch.setattr(module, "UNCLEAR", 1.0)
        with pytest.raises(PolicyError, match="at the mean"):
            check_agreement(each)
        monkeypatch.undo()
        assert each.model.dtype == dtype


def test_resumed_bfloat16_policy_has_a_higher_mismatch_limit():
    policy, broken = small_policy("recurrent_gemma"), small_policy("roberta")
    for each in (policy, broken):
        each.model.to(torch.bfloat16)
        with pytest.raises(PolicyError, match=r"at the mean from the learner, more than 0\.05"):
            check_agreement(each)
        each.version = 1
    check_agreement(policy)
    with pytest.raises(PolicyError, match=r"at the mean from the learner, more than 0\.15"):
        check_agreement(broken)


def test_agreement_check_rejects_bidirectional_encoder():
    policy = small_policy("bert")
    check_agreement(policy)
    policy.model.config.is_decoder = False
    encoder = Policy(type(policy.model)(policy.model.config), policy.tokenizer, "an encoder")
    with pytest.raises(PolicyError, match=f"'an encoder' .*'bert'.*{REMEDY}"):
        check_agreement(encoder)


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("all taken"), RuntimeError("MPS backend out of memory (all)")]
)
def test_agreement_check_propagates_out_of_memory(monkeypatch, error):
    policy = small_policy("recurrent_gemma")

    def full(*_, **__):
        raise error

    monkeypatch.setattr(modeling_recurrent_gemma.RecurrentGemmaForCausalLM, "forward", full)
    with pytest.raises(type(error), match="all"):
        check_agreement(policy)


def test_node_checks_its_model_unless_it_uses_a_given_engine():
    policy = small_policy("recurrent_gemma")
    with pytest.raises(PolicyError, match="recurrent_gemma"):
        TrainedPolicy(Config(), policy, Counters())
    trained = TrainedPolicy(Config(), random_policy(), Counters())
    assert TrainedPolicy(Config(), policy, Counters(), engine=trained.engine).engine


def test_join_rejects_mismatched_model_in_one_line(node, terminal, tmp_path):
    small_policy("recurrent_gemma").save(tmp_path / "model")
    model = f"--set=policy.model={tmp_path / 'model'}"
    told = terminal.fails(2, "join", "--config", "node/node.toml", model).splitlines()
    (line,) = [each for each in told if "policy.model" in each]
    assert re.search(rf"'recurrent_gemma' differs by [\d.]+ nats per token.*{REMEDY}", line), line


@pytest.mark.parametrize("family", MIXED)
@torch.no_grad()
def test_batched_completions_have_the_logprobs_of_single_ones(family):
    policy = family_policy(family)
    samples = TransformersEngine(policy, seed=0).generate(PROMPTS, 3, Sampling(max_new_tokens=20))
    for prompt, group in zip(PROMPTS, samples, strict=True):
        assert len({sample.tokens.ids for sample in group}) == 3
        for sample in group:
            assert_drawn_from(sample.tokens, prompt, policy, atol=1e-3)


@pytest.mark.parametrize("family", MIXED)
@torch.no_grad()
def test_logprobs_stay_correct_as_rows_and_weights_change(family, tmp_path):
    policies = [family_policy(family, seed) for seed in (1, 2)]
    policies[1].version = 1
    writing, caps = Writing(tmp_path, policies[0]), [4, 25, 12, 30]
    for number, (prompt, cap) in enumerate(zip(PROMPTS, caps, strict=True)):
        writing.submit(number, prompt, cap)
        writing.steps(5)
    writing.update(policies[1])
    writing.steps()
    assert [len(writing.ids[number]) for number in range(4)] == caps
    assert {version for each in writing.versions.values() for version in each} == {0, 1}
    for number, prompt in enumerate(PROMPTS):
        assert_drawn_from(writing.tokens(number), prompt, *policies, atol=1e-3)


def test_growing_layer_appends_after_rows_are_replaced():
    layer = GrowingLayer()
    keys = torch.arange(3.0)[:, None, None, None].expand(3, 1, 2, 4)
    layer.update(keys, -keys)
    layer.batch_select_indices(torch.tensor([2, 0]))
    new = torch.full((2, 1, 1, 4), 7.0)
    grown, values = layer.update(new, -new)
    assert grown[:, 0, :, 0].tolist() == [[2.0, 2.0, 7.0], [0.0, 0.0, 7.0]]
    assert torch.equal(values, -grown)
    layer.batch_repeat_interleave(2)
    grown, _ = layer.update(torch.zeros(4, 1, 1, 4), torch.zeros(4, 1, 1, 4))
    assert grown[:, 0, 0, 0].tolist() == [2.0, 2.0, 0.0, 0.0]
    layer.crop(-2)
    assert layer.update(new.repeat(2, 1, 1, 1), new.repeat(2, 1, 1, 1))[0].shape[-2] == 3
