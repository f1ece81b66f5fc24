"""Prompts read once: the same losses and gradients as one row for every completion."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from node.config.learning import LearnerSection, PolicySection
from node.learner.batches import Row, TrainingCompletion, TrainingGroup, held_tokens, micro_batches
from node.learner.learner import Learner
from node.learner.logprobs import distributions, token_logprobs
from node.learner.losses import Standardised
from node.learner.micro_batching import RowCost, fits
from node.learner.update_stats import UpdateStats
from node.policy.policy import Policy
from tests.library_privates import attend_by
from tests.support import figures, lone_logprobs, random_policy

ALWAYS = RowCost(matrices=1, pair=0, mask_weight=1e-3)
IDS = st.integers(0, 95)
SHAPE = {
    "vocab_size": 98,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
GPT2 = GPT2Config(vocab_size=98, n_embd=32, n_layer=2, n_head=2)


@st.composite
def completions(draw) -> TrainingCompletion:
    ids = draw(st.lists(IDS, min_size=1, max_size=6))
    trained = draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids)))
    mu = st.lists(st.floats(-4.0, -0.1), min_size=len(ids), max_size=len(ids))
    behaviour = draw(st.none() | mu)
    return TrainingCompletion(tuple(ids), tuple(trained), behaviour and tuple(behaviour))


@st.composite
def groups(draw) -> TrainingGroup:
    done = draw(st.lists(completions(), min_size=2, max_size=5))
    rewards = (1.0, 0.0, *(draw(st.sampled_from([0.0, 0.5, 1.0])) for _ in done[2:]))
    prompt = draw(st.lists(IDS, min_size=1, max_size=9))
    return TrainingGroup(tuple(prompt), tuple(done), rewards, draw(st.booleans()))


def trains(drawn: list[TrainingGroup]) -> bool:
    return any(any(c.trained) for g in drawn for c in g.completions)


@pytest.fixture(scope="module", params=["tiny", "tiny-wide"])
def policy(request) -> Policy:
    return Policy.load(PolicySection(model=request.param, device="cpu"))


def update(
    policy: Policy, sharing: RowCost | None, drawn: list[TrainingGroup], config: LearnerSection, how
) -> tuple[torch.Tensor, UpdateStats]:
    """The gradient and the report of an update that leaves the policy as it is."""
    learner = Learner(policy, config, correction=how)
    learner.sharing = sharing
    caught = []
    learner.optimizer.step = lambda: caught.append(
        torch.cat([p.grad.flatten() for p in policy.model.parameters()]).clone()
    )
    stats = learner.update(drawn)
    learner.optimizer.discard()
    nothing = torch.zeros(sum(p.numel() for p in policy.model.parameters()))
    return caught[0] if caught else nothing, stats


@settings(max_examples=30, deadline=None)
@given(
    drawn=st.lists(groups(), min_size=1, max_size=4).filter(trains),
    loss=st.sampled_from(["grpo", "dr_grpo", "gspo", "cispo"]),
    how=st.sampled_from(["none", "tis", "tapered"]),
    budget=st.sampled_from([1, 30, 8192]),
)
def test_groups_in_shared_rows_give_the_update_of_single_ones(policy, drawn, loss, how, budget):
    config = LearnerSection(loss=loss, max_grad_norm=1e9, micro_batch_tokens=budget)
    apart, expected = update(policy, None, drawn, config, how)
    gradient, stats = update(policy, ALWAYS, drawn, config, how)
    scale = max(1.0, float(apart.abs().max()))
    torch.testing.assert_close(gradient / scale, apart / scale, atol=2e-5, rtol=1e-3)
    assume(expected.grad_norm > 1e-5)  # of gradients that cancel out the shares are of rounding
    told = figures(stats)
    for name, value in figures(expected).items():
        near = None if value is None else pytest.approx(value, rel=1e-3, abs=1e-4)
        assert told[name] == near, name


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("config", [Qwen2Config(**SHAPE), LlamaConfig(**SHAPE), GPT2], ids=type)
def test_a_shared_row_scores_completions_as_if_each_were_alone(config, attention):
    base = random_policy()
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention)
    policy = Policy(model, base.tokenizer, "other")
    assert fits(model)
    rows = sorted((random_row(n, trained=True) for n in range(3)), key=lambda row: row.length)
    (batch,) = micro_batches(rows, 10_000, policy.pad_id, policy.device)
    assert len(batch.input_ids) == len(rows)
    with torch.no_grad():
        scored = token_logprobs(distributions(model, batch, 0.7), batch)
        alone = [
            lone_logprobs(policy, row.prompt_ids, done.ids, 0.7)
            for row in rows
            for done in row.completions
        ]
    for line, mask, expected in zip(scored, batch.mask, alone, strict=True):
        torch.testing.assert_close(line[mask], expected, atol=1e-5, rtol=1e-4)


def random_row(seed: int, *, trained: bool = False) -> Row:
    draw = random.Random(seed)
    done = []
    for _ in range(draw.randint(2, 8)):
        ids = tuple(draw.randrange(95) for _ in range(draw.randint(1, 30)))
        done.append(TrainingCompletion(ids, tuple(trained or draw.random() < 0.7 for _ in ids)))
    prompt = tuple(draw.randrange(95) for _ in range(draw.randint(1, 60)))
    return Row(prompt, tuple(done), tuple(draw.gauss(0, 1) for _ in done), own=True)


def test_the_same_update_gives_the_same_bits(policy):
    drawn = [
        TrainingGroup(
            row.prompt_ids, row.completions, (1.0, *[0.0] * (len(row.completions) - 1)), True
        )
        for row in map(random_row, range(6))
    ]
    first, second = (update(policy, ALWAYS, drawn, LearnerSection(), "tis") for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


@pytest.mark.parametrize("budget", [1, 40, 200, 1000])
def test_shared_rows_hold_no_more_than_the_budget_and_every_completion_once(budget):
    sharing = dataclasses.replace(ALWAYS, mask_weight=0.01)
    for whole in map(random_row, range(20)):
        parts = sharing.rows(whole, budget)
        assert sum((part.completions for part in parts), ()) == whole.completions
        assert sum((part.advantages for part in parts), ()) == whole.advantages
        for part in parts:
            assert not part.shared or held_tokens(1, part, sharing.mask_weight) <= budget


@pytest.mark.parametrize("budget", [40, 200, 1000])
def test_micro_batches_of_several_rows_stay_within_the_budget_with_their_masks(budget):
    weight = 0.01
    rows = [part for seed in range(20) for part in ALWAYS.rows(random_row(seed), budget)]
    seen = 0
    for batch in micro_batches(rows, budget, 0, torch.device("cpu"), weight):
        count, length = batch.input_ids.shape
        seen += count
        mask = 0 if batch.segments is None else count * length**2
        assert count == 1 or count * length + mask * weight <= budget
    assert seen == len(rows)


def test_short_answers_share_their_prompt_and_long_ones_do_not():
    sharing = RowCost.of(random_policy().model)

    def rows(prompt: int, answer: int) -> int:
        done = (TrainingCompletion((1,) * answer, (True,) * answer),) * 8
        advantages = Standardised()((1.0, *[0.0] * 7))
        return len(sharing.rows(Row((1,) * prompt, done, advantages, own=True), 1 << 30))

    assert rows(20, 5) == 1
    assert rows(200, 30) == 1
    assert rows(5, 400) == 8


def test_a_large_model_shares_prompts_of_ordinary_rollouts():
    """Half a billion weights, a prompt of 200 tokens and eight answers of 60."""
    sharing = RowCost(matrices=360_000_000, pair=2 * 24 * 896, mask_weight=1 / (24 * 896))
    done = (TrainingCompletion((1,) * 60, (True,) * 60),) * 8
    row = Row((1,) * 200, done, (0.0,) * 8, own=True)
    assert sharing.rows(row, 8192) == [row]


def built(config, attention: str = "sdpa") -> PreTrainedModel:
    model = AutoModelForCausalLM.from_config(config)
    attend_by(model, attention)
    return model


def rotated(kind: str) -> LlamaConfig:
    factor = {"factor": 2.0, "original_max_position_embeddings": 1024}
    return LlamaConfig(**SHAPE, rope_parameters={"rope_type": kind, "rope_theta": 1e4, **factor})


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: built(LlamaConfig(**SHAPE)), True),
        (lambda: built(Qwen3Config(**SHAPE)), True),
        (lambda: built(GPT2), True),
        (lambda: built(rotated("yarn")), True),
        (lambda: built(rotated("dynamic")), False),
        (lambda: built(LlamaConfig(**SHAPE), "flash_attention_2"), False),
        (lambda: built(LlamaConfig(**SHAPE), "flex_attention"), False),
        (lambda: built(MistralConfig(**SHAPE, sliding_window=64)), False),
        (
            lambda: built(
                Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=8, max_window_layers=1)
            ),
            False,
        ),
        (lambda: built(MambaConfig(vocab_size=98, hidden_size=32, num_hidden_layers=1)), False),
        (lambda: built(BloomConfig(vocab_size=98, hidden_size=32, n_layer=1, n_head=2)), False),
    ],
    ids=[
        "llama",
        "qwen3",
        "gpt2",
        "yarn",
        "rotations by length",
        "flash attention",
        "flex attention",
        "sliding window",
        "some sliding layers",
        "state space",
        "positions from the mask",
    ],
)
def test_prompts_are_shared_only_where_the_model_takes_the_mask_and_positions_as_told(
    model, expected
):
    assert fits(model()) is expected


def test_a_model_that_does_not_fit_is_trained_on_rows_of_one_completion():
    base = random_policy()
    model = built(MistralConfig(**SHAPE, sliding_window=4))
    learner = Learner(Policy(model, base.tokenizer, "windowed"), LearnerSection())
    rows = [random_row(seed) for seed in range(3)]
    batches = learner.batches(rows)
    assert all(batch.segments is None for batch in batches)
    assert sum(len(b.input_ids) for b in batches) == sum(len(r.completions) for r in rows)
