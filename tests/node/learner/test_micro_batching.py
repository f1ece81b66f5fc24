"""Shared prompts give the same losses and gradients as one row per completion."""

import itertools
import math
import random
from copy import deepcopy
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, MistralConfig, Qwen2Config
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from node.config.learning import LearnerSection
from node.errors import NodeError
from node.learner.batches import (
    Row,
    TrainingCompletion,
    TrainingGroup,
    held_tokens,
    lie_well,
    micro_batches,
)
from node.learner.learner import Learner
from node.learner.logprobs import distributions, token_logprobs
from node.learner.losses import Standardised
from node.learner.micro_batching import SEPARATE, RowCost, reads_shared_rows, takes_unpacking
from node.policy.policy import Policy
from tests.library_privates import attend_by
from tests.node.learner.parts import (
    CONFIG,
    LOSSES,
    MIXED,
    behaving,
    cramped_policy,
    update,
    weights,
)
from tests.support import changed, figures, loaded, lone_logprobs, random_policy

ALWAYS = RowCost(matrices=1, pair=0, mask_weight=1e-3)
UNPACKED = RowCost(matrices=1, pair=0, mask_weight=1e-3, unpacking=-1.0)
SHAPE = {
    "vocab_size": 98,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
GPT2 = transformers.GPT2Config(vocab_size=98, n_embd=32, n_layer=2, n_head=2)
ONE_KEY = transformers.GPTBigCodeConfig(vocab_size=98, n_embd=32, n_layer=2, n_head=2)
LLAMA = LlamaConfig(**SHAPE)
SOME_SLIDE = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}
ERRORS = {
    "gpu": torch.OutOfMemoryError("CUDA out of memory"),
    "driver": RuntimeError("CUDA error: out of memory"),
    "AMD's driver": RuntimeError("HIP error: out of memory"),
    "Mac": RuntimeError("MPS backend out of memory (MPS allocated: 12.74 GB, max allowed: 18 GB)"),
    "cpu": RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"
    ),
}
LONGEST = 1 + max(len(g.prompt_ids) + len(c.ids) - 1 for g in MIXED for c in g.completions)


@st.composite
def completions(draw):
    ids = draw(st.lists(st.integers(0, 95), min_size=1, max_size=6))
    size = {"min_size": len(ids), "max_size": len(ids)}
    mu = draw(st.none() | st.lists(st.floats(-4.0, -0.1), **size))
    trained = draw(st.lists(st.booleans(), **size))
    return TrainingCompletion(tuple(ids), tuple(trained), mu and tuple(mu))


@st.composite
def groups(draw):
    done = draw(st.lists(completions(), min_size=2, max_size=5))
    rewards = (1.0, 0.0, *(draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in done[2:]))
    prompt = draw(st.lists(st.integers(0, 95), min_size=1, max_size=9))
    return TrainingGroup(tuple(prompt), tuple(done), rewards, draw(st.booleans()))


UPDATES = {
    "drawn": st.lists(groups(), min_size=1, max_size=4).filter(
        lambda drawn: any(any(c.trained) for g in drawn for c in g.completions)
    ),
    "loss": st.sampled_from(LOSSES),
    "how": st.sampled_from(["none", "tis", "tapered"]),
    "budget": st.sampled_from([1, 30, 8192]),
}
"""Groups with at least one trained token, and learner settings."""


@pytest.fixture(scope="module", params=["tiny", "tiny-wide"])
def policy(request):
    return loaded(request.param)


@settings(max_examples=30, deadline=None)
@given(data=st.data(), **UPDATES)
def test_shared_rows_give_the_same_update_as_separate_rows(policy, data, drawn, loss, how, budget):
    config = LearnerSection(loss=loss, max_grad_norm=1e9, micro_batch_tokens=budget)
    layouts = SEPARATE, data.draw(st.sampled_from([ALWAYS, UNPACKED]))
    (apart, expected), (gradient, stats) = (
        update(policy, drawn, config, sharing=each, correction=how) for each in layouts
    )
    scale = max(1.0, float(apart.abs().max()))
    assert_close(gradient / scale, apart / scale, atol=2e-5, rtol=1e-3)
    assume(expected.grad_norm > 1e-5)  # gradients that cancel out leave rounding errors
    told = figures(stats)
    for name, value in figures(expected).items():
        near = None if value is None else pytest.approx(value, rel=1e-3, abs=1e-4)
        assert told[name] == near, name


@pytest.mark.parametrize("attention", ["sdpa", "eager", "unpacked"])
@pytest.mark.parametrize(
    "config", [Qwen2Config(**SHAPE), LlamaConfig(**SHAPE), GPT2, ONE_KEY], ids=type
)
@torch.no_grad()
def test_shared_row_scores_completions_independently(config, attention):
    torch.manual_seed(0)
    kind = attention.replace("unpacked", "sdpa")
    model = AutoModelForCausalLM.from_config(config, attn_implementation=kind)
    policy = Policy(model, random_policy().tokenizer, "other")
    assert reads_shared_rows(model) and takes_unpacking(model) is (kind == "sdpa")
    rows = sorted((random_row(n, trained=True) for n in range(3)), key=lambda row: row.length)
    rows = [replace(row, unpacked=attention == "unpacked") for row in rows]
    (batch,) = micro_batches(rows, 10_000, policy.pad_id, policy.device)
    assert len(batch.input_ids) == len(rows)
    assert (batch.unpacking is None) is (attention != "unpacked")
    scored = token_logprobs(distributions(model, batch, 0.7), batch)
    alone = [(row.prompt_ids, done.ids) for row in rows for done in row.completions]
    for line, mask, each in zip(scored, batch.mask, alone, strict=True):
        assert_close(line[mask], lone_logprobs(policy, *each, 0.7), atol=1e-5, rtol=1e-4)


def random_row(seed, *, trained=False):
    draw = random.Random(seed)
    done = []
    for _ in range(draw.randint(2, 8)):
        ids = tuple(draw.randrange(95) for _ in range(draw.randint(1, 30)))
        done.append(TrainingCompletion(ids, tuple(trained or draw.random() < 0.7 for _ in ids)))
    prompt = tuple(draw.randrange(95) for _ in range(draw.randint(1, 60)))
    return Row(prompt, tuple(done), tuple(draw.gauss(0, 1) for _ in done), local=True)


def test_update_is_bitwise_deterministic(policy):
    drawn = []
    for row in map(random_row, range(6)):
        rewards = (1.0, *[0.0] * (len(row.completions) - 1))
        drawn.append(TrainingGroup(row.prompt_ids, row.completions, rewards, True))
    how = {"config": LearnerSection(), "sharing": ALWAYS, "correction": "tis"}
    (first, told), (second, same) = (update(policy, drawn, **how) for _ in range(2))
    assert torch.equal(first, second) and told == same


@pytest.mark.parametrize("budget", [1, 40, 200, 1000])
def test_rows_and_micro_batches_fit_budget_and_keep_each_completion(budget):
    sharing, rows, seen = replace(ALWAYS, mask_weight=0.01), [], 0
    for whole in map(random_row, range(20)):
        parts = sharing.rows(whole, budget)
        assert sum((part.completions for part in parts), ()) == whole.completions
        assert sum((part.advantages for part in parts), ()) == whole.advantages
        for part in parts:
            assert not part.shared or held_tokens([part], sharing.mask_weight) <= budget
        rows += ALWAYS.rows(whole, budget)
    for batch in micro_batches(rows, budget, 0, torch.device("cpu"), 0.01):
        count, length = batch.input_ids.shape
        seen += count
        mask = 0 if batch.segments is None else count * length**2
        assert count == 1 or count * length + mask * 0.01 <= budget
    assert seen == len(rows)


def test_short_answers_share_their_prompt_and_long_ones_do_not():
    def row(prompt, answer):
        done = (TrainingCompletion((1,) * answer, (True,) * answer),) * 8
        return Row((1,) * prompt, done, Standardised()((1.0, *[0.0] * 7)), local=True)

    small = RowCost.of(random_policy().model)
    rows = [row(*each) for each in ((20, 5), (200, 30), (5, 400))]
    assert [len(small.rows(each, 1 << 30)) for each in rows] == [1, 1, 8]
    # A model of 0.5B parameters, a prompt of 200 tokens and eight answers of 60.
    large = RowCost(360_000_000, pair=2 * 24 * 896, mask_weight=1 / (24 * 896), unpacking=2.5e8)
    assert large.rows(row(200, 60), 8192) == [row(200, 60)]
    assert large.rows(row(100, 200), 8192) == [replace(row(100, 200), unpacked=True)]
    halves = large.rows(row(100, 200), 1000)
    assert len(halves) == 2 and all(each.unpacked for each in halves)
    # With one long answer, unpacking would pad all sequences to its length.
    mixed = replace(
        row(100, 200),
        completions=(TrainingCompletion((1,) * 900, (True,) * 900), *row(1, 60).completions[1:]),
    )
    assert not any(each.unpacked for each in large.rows(mixed, 8192))
    assert not lie_well(
        [*large.rows(row(100, 200), 8192), row(100, 1500).part(0, 1)], 1 << 20, 0.0, 64
    )


ROTATED = {"factor": 2.0, "original_max_position_embeddings": 1024, "rope_theta": 1e4}
YARN, DYNAMIC = ({**ROTATED, "rope_type": kind} for kind in ("yarn", "dynamic"))
BARE = {"vocab_size": 98, "hidden_size": 32}
MODELS = {
    "llama": (LLAMA, True),
    "qwen3": (transformers.Qwen3Config(**SHAPE), True),
    "gpt2": (GPT2, True),
    "yarn": (LlamaConfig(**SHAPE, rope_parameters=YARN), True),
    "rotations by length": (LlamaConfig(**SHAPE, rope_parameters=DYNAMIC), False),
    "flash_attention_2": (LLAMA, False),
    "flex_attention": (LLAMA, False),
    "sliding window": (MistralConfig(**SHAPE, sliding_window=64), False),
    "some sliding layers": (Qwen2Config(**SHAPE, **SOME_SLIDE), False),
    "state space": (transformers.MambaConfig(**BARE, num_hidden_layers=1), False),
    "positions from the mask": (BloomConfig(**BARE, n_layer=1, n_head=2), False),
}


@pytest.mark.parametrize("name", MODELS)
def test_prompts_are_shared_only_if_model_uses_mask_and_positions(name):
    config, expected = MODELS[name]
    model = AutoModelForCausalLM.from_config(deepcopy(config))
    attend_by(model, name if "attention" in name else "sdpa")
    assert reads_shared_rows(model) is expected


def test_gradient_checkpointing_supports_unpacked_rows(policy):
    ways = (changed(CONFIG, gradient_checkpointing=again) for again in (False, True))
    (kept, stats), (again, repeated) = (update(policy, MIXED, c, sharing=UNPACKED) for c in ways)
    assert_close(again, kept)
    assert repeated.loss == pytest.approx(stats.loss)


def test_attention_unpacks_only_if_all_layers_can():
    without_settings, with_masks = transformers.NemotronConfig, transformers.DogeConfig
    for kind in (without_settings, with_masks):
        model = AutoModelForCausalLM.from_config(kind(**SHAPE))
        assert reads_shared_rows(model) and RowCost.of(model).unpacking == math.inf


def test_replaced_attention_function_is_still_unpacked(monkeypatch):
    model = AutoModelForCausalLM.from_config(LLAMA)
    assert takes_unpacking(model)
    row = replace(random_row(1, trained=True), unpacked=True)
    (batch,) = micro_batches([row], 10_000, 0, model.device)
    expected, calls = distributions(model, batch, 1.0), []

    def replaced(*given, **settings):
        calls.append(given)
        return sdpa_attention_forward(*given, **settings)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, "sdpa", replaced)
    assert_close(distributions(model, batch, 1.0), expected)
    assert len(calls) == SHAPE["num_hidden_layers"]


def test_unsupported_model_is_trained_on_single_completion_rows():
    model = AutoModelForCausalLM.from_config(MistralConfig(**SHAPE, sliding_window=4))
    learner = Learner(Policy(model, random_policy().tokenizer, "windowed"), LearnerSection())
    rows = [random_row(seed) for seed in range(3)]
    batches = learner.batches(rows)
    assert all(batch.segments is None for batch in batches)
    assert sum(len(b.input_ids) for b in batches) == sum(len(r.completions) for r in rows)


def shrinking(config, **settings):
    """Build a learner that can hold only two completions after its first step."""
    policy = cramped_policy(1 << 30, **settings.pop("model", {}))
    learner = Learner(policy, config, **settings)
    step = learner.optimizer.step

    def step_and_shrink():
        step()
        policy.model.room = 2 * LONGEST

    learner.optimizer.step = step_and_shrink
    return policy, learner


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("backwards", [False, True], ids=["forward", "backward"])
def test_update_out_of_memory_matches_smaller_micro_batches(epochs, error, backwards, caplog):
    config = changed(CONFIG, epochs=epochs)
    small = changed(config, micro_batch_tokens=2 * LONGEST)
    policy, plain = cramped_policy(2 * LONGEST), random_policy()
    policy.model.error, policy.model.backwards = ERRORS[error], backwards
    stats, usual = (
        Learner(p, c, correction="tis").update(behaving(MIXED, 0.1))
        for p, c in ((policy, config), (plain, small))
    )
    apart, moved = (weights(p) - weights(plain) for p in (policy, random_policy()))
    assert apart.norm() <= 1e-3 * moved.norm()
    assert stats.halved > 0 and usual.halved == 0 and policy.version == epochs
    for figure in ("tokens_trained", "loss", "entropy", "ratio_median", "clip_fraction"):
        assert getattr(stats, figure) == pytest.approx(getattr(usual, figure), abs=1e-4), figure
    assert f"reduced from {config.micro_batch_tokens} to" in caplog.text


def test_learner_keeps_reduced_budget_for_the_next_update():
    learner = Learner(cramped_policy(2 * LONGEST), CONFIG)
    assert learner.update(MIXED).halved > 0 == learner.update(MIXED).halved


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_out_of_memory_after_a_step_keeps_the_proximal_policy(dtype):
    """The second pass is split again; its ratios still use the initial policy."""
    config = changed(CONFIG, epochs=2, lr=1e-2)
    policy, learner = shrinking(config, model={"dtype": dtype})
    stats = learner.update(MIXED)
    expected = Learner(random_policy(dtype=dtype), config).update(MIXED)
    assert stats.halved > 0 and policy.version == 2 and stats.clip_fraction > 0
    assert stats.clip_fraction == pytest.approx(expected.clip_fraction, abs=0.06)


def test_padding_in_a_split_pass_does_not_cause_infinite_ratios():
    """At a low temperature, log-probs of padding tokens are far apart."""
    policy, learner = shrinking(changed(CONFIG, epochs=2, lr=1e-5), temperature=0.02)
    stats = learner.update(MIXED)
    assert stats.halved > 0 and (stats.refused, policy.version) == (0, 2)


def test_oversized_completion_error_names_settings_to_change():
    policy = cramped_policy(3)
    before, learner = weights(policy), Learner(policy, CONFIG)
    with pytest.raises(NodeError, match="single completion") as refused:
        learner.update(MIXED)
    keys = ("micro_batch_tokens", "max_completion_tokens", "gradient_checkpointing")
    for key in (*(f"learner.{each}" for each in keys), "engine.max_new_tokens"):
        assert key in str(refused.value)
    assert torch.equal(weights(policy), before)
    assert all(p.grad is None for p in policy.model.parameters())
    policy.model.error = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        Learner(policy, CONFIG).update(MIXED)


def test_failed_update_does_not_affect_the_next_one():
    config = changed(CONFIG, micro_batch_tokens=1)
    policy, reference = random_policy(), random_policy()
    learner, calls = Learner(policy, config), itertools.count()
    whole = learner.optimizer.backward

    def backward(*arguments):
        if next(calls) == 2:
            raise RuntimeError("an unspecified launch failure")
        whole(*arguments)

    learner.optimizer.backward = backward
    with pytest.raises(RuntimeError, match="launch failure"):
        learner.update(MIXED)
    assert all(p.grad is None for p in policy.model.parameters())
    learner.update(MIXED)
    Learner(reference, config).update(MIXED)
    assert torch.equal(weights(policy), weights(reference))


def test_optimizer_out_of_memory_error_names_settings_to_change():
    policy = random_policy()
    learner = Learner(policy, CONFIG)
    learner.optimizer.adam.step = Mock(side_effect=ERRORS["gpu"])
    told = r"optimizer's step.*adamw8bit.*learner.offload.*sleep_mode"
    with pytest.raises(NodeError, match=told):
        learner.update(MIXED)
    assert policy.version == 0
