"""Norms of groups in one pass equal those of a separate pass over each group."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, Gemma2Config, GPT2Config, Qwen2Config

from node.learner.group_norms import GroupNorms
from node.learner.learner import Learner
from node.learner.micro_batching import SEPARATE
from node.learner.update_stats import UpdateSums
from node.policy.fast_layers import OneDnnLinear, fuse_norm
from node.policy.lora import Adapter
from node.policy.policy import Policy
from tests.library_privates import counted_kernels
from tests.node.learner import parts
from tests.node.learner.parts import FAT, HONEST, HOT, cramped_policy, drawn, weights
from tests.node.learner.test_logprobs import EXPERTS, SHAPE, WORDS, parts_of
from tests.support import changed, character_tokenizer, random_policy

CONFIG = changed(parts.CONFIG, groups_per_step=0)
WIDE = {**SHAPE, "head_dim": 16, "num_key_value_heads": 2}
CONFIGS = {
    "Llama": transformers.LlamaConfig(**SHAPE),
    "Llama with biases": transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "Llama, tied": transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "Mistral": transformers.MistralConfig(**SHAPE, sliding_window=4),
    "Qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "Qwen3": transformers.Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "Gemma2": Gemma2Config(**SHAPE, final_logit_softcapping=3.0),
    "Gemma3": transformers.Gemma3TextConfig(**SHAPE),
    "Phi3": transformers.Phi3Config(**SHAPE),
    "Phi": transformers.PhiConfig(**WIDE),
    "GPT-2": GPT2Config(vocab_size=WORDS, n_embd=32, n_layer=2, n_head=2),
    "GPT-NeoX": transformers.GPTNeoXConfig(**WIDE),
    "OPT": transformers.OPTConfig(**SHAPE, ffn_dim=48, word_embed_proj_dim=32),
    "OLMo2": transformers.Olmo2Config(**WIDE),
    "SmolLM3": transformers.SmolLM3Config(**WIDE),
    "Granite": transformers.GraniteConfig(**SHAPE, logits_scaling=4.0),
    "Cohere": transformers.CohereConfig(**SHAPE, logit_scale=0.25),
}


def policy_of(config, *, rank=0, dtype=torch.float32) -> Policy:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    adapter = Adapter(model, rank=rank, alpha=32) if rank else None
    policy = Policy(model, character_tokenizer(), "random", adapter)
    policy.context_length = 512
    return policy


def measured(learner, rows):
    with GroupNorms(learner.gradient.model) as norms:
        learner.add_measured(rows, {}, UpdateSums(), factors=lambda _: {}, norms=norms)
        return norms.norms(), norms.complete()


def gradient(learner):
    grads = [p.grad.flatten() for p in learner.optimizer.masters if p.grad is not None]
    return torch.cat(grads).float()


def separate(learner, rows):
    result = []
    for row in rows:
        learner.optimizer.discard()
        learner.add([row], {}, UpdateSums())
        result.append(gradient(learner))
    return result


def check(learner, groups, tolerance=1e-4):
    rows = learner.rows(groups)
    assert learner.rows_in_batch(rows) == len(rows) > 1
    norms, complete = measured(learner, rows)
    total = gradient(learner)
    expected = separate(learner, rows)
    assert complete
    assert norms == pytest.approx([float(each.norm()) for each in expected], rel=tolerance)
    assert_close(total, sum(expected), rtol=tolerance, atol=tolerance * float(total.norm()))


@pytest.mark.parametrize("sharing", [True, False], ids=["shared prompts", "padded rows"])
@pytest.mark.parametrize("in_parts", [False, True], ids=["whole logits", "logits in parts"])
@pytest.mark.parametrize("name", CONFIGS)
def test_norms_equal_separate_passes_for_every_family(name, in_parts, sharing):
    with parts_of(7) if in_parts else nullcontext():
        learner = Learner(policy_of(CONFIGS[name]), CONFIG)
        if not sharing:
            learner.sharing = SEPARATE
        check(learner, HONEST[:5])


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "Gemma3", "Phi"])
def test_norms_support_lora_adapters(name):
    policy = policy_of(CONFIGS[name], rank=4)
    with torch.no_grad():
        for weight_name, weight in policy.model.named_parameters():
            if "lora_B" in weight_name:
                weight.normal_(std=0.1)
    check(Learner(policy, CONFIG), HONEST[:5])


def test_norms_support_half_precision_lora_and_float16():
    check(Learner(policy_of(CONFIGS["Llama"], rank=4, dtype=torch.bfloat16), CONFIG), HONEST, 5e-2)
    learner = Learner(policy_of(CONFIGS["Qwen2"], dtype=torch.float16), CONFIG)
    rows = learner.rows(HONEST)
    norms = [each / learner.optimizer.scale for each in measured(learner, rows)[0]]
    assert norms == pytest.approx([float(g.norm()) for g in separate(learner, rows)], rel=5e-2)


@pytest.mark.parametrize("name", ["Llama", "Qwen3", "OLMo2"])
def test_norms_support_fused_norm_layers(name):
    policy = policy_of(CONFIGS[name])
    assert sum(fuse_norm(layer) for layer in list(policy.model.modules())) > 3
    check(Learner(policy, CONFIG), HONEST[:5])


def test_norms_support_onednn_linear_layers(monkeypatch):
    monkeypatch.setattr("node.policy.fast_layers.quicker", lambda: True)
    monkeypatch.setattr("node.policy.fast_layers.LEAST_WEIGHTS", 1)
    monkeypatch.setattr("node.policy.fast_layers.LEAST_WORK", 1)
    for name in ("Llama with biases", "Llama, tied", "Qwen3"):
        for positions in (7, None):
            with parts_of(positions) if positions else nullcontext():
                learner = Learner(policy_of(CONFIGS[name]), CONFIG)
                layers = learner.gradient.model.modules()
                assert sum(isinstance(layer, OneDnnLinear) for layer in layers) > 10
                check(learner, HONEST[:5])


def test_norms_support_gradient_checkpointing():
    checkpointing = changed(CONFIG, gradient_checkpointing=True)
    check(Learner(policy_of(CONFIGS["Qwen2"]), checkpointing), HONEST)


@given(
    shapes=st.lists(
        st.tuples(st.integers(2, 5), st.integers(1, 9), st.booleans()), min_size=2, max_size=6
    ),
    sharing=st.booleans(),
    in_parts=st.booleans(),
)
@settings(max_examples=25, deadline=None)
def test_norms_are_correct_for_any_row_count_per_group(shapes, sharing, in_parts):
    groups = [drawn(n, k, length, local=local) for n, (k, length, local) in enumerate(shapes)]
    with parts_of(5) if in_parts else nullcontext():
        learner = Learner(random_policy(), CONFIG)
        if not sharing:
            learner.sharing = SEPARATE
        check(learner, groups, 1e-3)


def updated(groups, *, joined=True, policy=None, **changes):
    """Return weights, stats and learner of an update without stored gradients."""
    policy = policy or random_policy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
        if not joined:
            patch.setattr(Learner, "rows_in_batch", lambda *_: 1)
        learner = Learner(policy, changed(CONFIG, **changes), correction="tapered")
        stats = learner.update(groups)
    return weights(policy), stats, learner


INTRUDERS = {"plain": drawn(70, 4, 24), "fat": FAT, "hot": HOT}
WAYS = [
    {},
    {"epochs": 3},
    {"micro_batch_tokens": 300},
    {"gradient_checkpointing": True},
    {"offload": True},
    {"groups_per_step": 4},
]


@pytest.mark.parametrize("changes", WAYS, ids=str)
@pytest.mark.parametrize("intruder", INTRUDERS)
def test_joint_and_separate_passes_make_the_same_update(intruder, changes):
    groups = [*HONEST, INTRUDERS[intruder]]
    first, stats, learner = updated(groups, **changes)
    second, expected, _ = updated(groups, joined=False, **changes)
    assert learner.gradient.checked
    assert stats.largest_share == pytest.approx(expected.largest_share, rel=1e-3)
    assert stats.groups_bounded == expected.groups_bounded
    assert stats.loss == pytest.approx(expected.loss, abs=1e-5)
    assert stats.tokens_trained == expected.tokens_trained
    assert stats.useful == pytest.approx(expected.useful, abs=1e-3)
    assert_close(first, second, atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_bound_holds_for_joint_pass_in_half_precision(dtype):
    _, stats, learner = updated([*HONEST, HOT], policy=random_policy(dtype=dtype))
    assert 0 < stats.largest_share <= 2 / 12 + 1e-6 and not stats.refused
    assert learner.gradient.checked


def test_learner_splits_joint_pass_that_runs_out_of_memory():
    roomy, _, _ = updated(HONEST)
    tight, stats, _ = updated(HONEST, policy=cramped_policy(300))
    assert stats.halved > 0
    assert_close(roomy, tight, atol=2e-4, rtol=1e-3)


OTHERS = {
    "experts": transformers.OlmoeConfig(**{**SHAPE, "num_key_value_heads": 2}, **EXPERTS),
    "Mamba": transformers.MambaConfig(vocab_size=WORDS, hidden_size=32, num_hidden_layers=2),
    "Mamba 2": transformers.Mamba2Config(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_heads=4, head_dim=16, n_groups=1
    ),
    "BLOOM": transformers.BloomConfig(vocab_size=WORDS, hidden_size=32, n_layer=2, n_head=2),
    "Falcon": transformers.FalconConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=2, num_attention_heads=2
    ),
    "StarCoder2": transformers.Starcoder2Config(**SHAPE),
    "RecurrentGemma": transformers.RecurrentGemmaConfig(
        vocab_size=WORDS, hidden_size=32, num_hidden_layers=3, num_attention_heads=2
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_unmeasurable_models_are_read_group_by_group(name):
    groups = [*HONEST, HOT]
    whole, stats, learner = updated(groups, policy=policy_of(OTHERS[name]))
    alone, expected, _ = updated(groups, joined=False, policy=policy_of(OTHERS[name]))
    assert learner.gradient.measurable == (name in ("BLOOM", "StarCoder2"))
    assert stats.largest_share == pytest.approx(expected.largest_share, rel=1e-3)
    assert stats.tokens_trained == expected.tokens_trained
    assert_close(whole, alone, atol=2e-4, rtol=1e-3)


def test_learner_detects_wrong_norms_before_the_first_step(monkeypatch, caplog):
    monkeypatch.setattr("node.learner.group_norms.Layout.measure", lambda *_: None)
    monkeypatch.setattr(GroupNorms, "norms", lambda norms: [1.0 for _ in norms.layout.sizes])
    with caplog.at_level("INFO"):
        wrong, _, learner = updated([*HONEST, HOT])
    right, _, _ = updated([*HONEST, HOT], joined=False)
    assert not learner.gradient.measurable and "forward passes of one group" in caplog.text
    assert_close(wrong, right, atol=2e-4, rtol=1e-3)


def test_peer_groups_launch_at_most_30_percent_more_kernels(monkeypatch):
    monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    mixed = [drawn(n, 4, 24, local=n < 4) for n in range(12)]
    local = [replace(group, local=True) for group in mixed]

    def kernels(groups):
        learner = Learner(policy_of(CONFIGS["Llama, tied"]), CONFIG, correction="tapered")
        learner.update(groups)
        with counted_kernels() as counted:
            stats = learner.update(groups)
        return counted.count, stats.groups_bounded

    (ours, none), (theirs, bounded) = kernels(local), kernels(mixed)
    assert none == bounded == 0
    assert ours < theirs <= 1.3 * ours


def test_peer_groups_share_a_pass_without_informative_local_groups(monkeypatch):
    monkeypatch.setattr("node.learner.group_gradients.MOST_BYTES", 0)
    learner, groups = Learner(random_policy(), CONFIG), [drawn(n, 4, 24) for n in range(8)]
    learner.update(groups)
    monkeypatch.delattr(Learner, "add")
    assert not learner.update(groups).skipped
