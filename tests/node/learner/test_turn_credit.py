"""What a turn's own advantage is, and what an update makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from node.config.registry import ADVANTAGES, LOSSES
from node.learner.batches import TrainingGroup
from node.learner.learner import Learner
from node.learner.losses import Clip, Terms
from node.learner.update_rows import TurnCredit, by_turn, turns_of
from tests.node.learner.test_learner import CONFIG, EVEN, MIXED, gradient_of
from tests.node.learner.test_losses import gradient, terms
from tests.node.learner.trajectories import played, trajectory
from tests.support import changed, random_policy

CENTRED = ADVANTAGES.open("dr_grpo", {})
SUMMED = ("grpo", "dr_grpo", "cispo")
REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=6)
WIDE = Clip(1.0, 9.0)


def credits(
    turns: Sequence[int],
    rewards: Sequence[float],
    share: float,
    discount: float = 0.5,
    *,
    own: bool = True,
    advantage: str = "dr_grpo",
) -> list[list[float]]:
    """Of each trajectory, its turns' advantages; every token of a turn has to have the same."""
    rule = ADVANTAGES.open(advantage, {})
    group = played(turns, rewards, own=own)
    lines = TurnCredit(rule, share, discount)(group, rule(rewards))
    assert len(lines) == len(rewards)
    told = []
    for line, completion in zip(lines, group.completions, strict=True):
        assert len(line) == len(completion.ids)
        parts = [set(line[place]) for place in turns_of(completion.trained)]
        assert all(len(part) == 1 for part in parts)
        told.append([part.pop() for part in parts])
    return told


def test_turns_are_what_the_policy_wrote_between_two_answers() -> None:
    assert turns_of([True, True, False, True]) == [slice(0, 2), slice(3, 4)]
    assert turns_of([False, True, False]) == [slice(1, 2)]
    assert turns_of([True]) == [slice(0, 1)]
    assert turns_of([False]) == turns_of([]) == []


def test_a_turn_is_measured_against_the_same_turn_of_those_that_have_one() -> None:
    """Returns of the first turns 1/4, 0 and 1, of the second 1/2 and 0, of the third 1."""
    told = credits([3, 2, 1], [1.0, 0.0, 1.0], share=1.0)
    first = (0.25 + 0.0 + 1.0) / 3
    assert told[0] == pytest.approx([0.25 - first, 0.25, 0.0])
    assert told[1] == pytest.approx([-first, -0.25])
    assert told[2] == pytest.approx([1.0 - first])


def test_half_and_half_is_the_mean_of_both_advantages() -> None:
    turns, rewards = [3, 2, 1], [1.0, 0.0, 1.0]
    alone, half = credits(turns, rewards, 1.0), credits(turns, rewards, 0.5)
    whole = CENTRED(rewards)
    for line, own, parts in zip(half, whole, alone, strict=True):
        assert line == pytest.approx([(own + part) / 2 for part in parts])


@given(rewards=REWARDS, turns=st.integers(2, 5), share=st.floats(0.01, 1.0))
def test_undiscounted_turns_of_equally_long_trajectories_have_the_advantage_of_these(
    rewards: list[float], turns: int, share: float
) -> None:
    for line, own in zip(
        credits([turns] * len(rewards), rewards, share, 1.0), CENTRED(rewards), strict=True
    ):
        assert line == pytest.approx([own] * turns)


@given(
    rewards=REWARDS,
    lengths=st.lists(st.integers(1, 5), min_size=6, max_size=6),
    discount=st.floats(0.0, 1.0),
)
def test_a_turns_own_advantages_add_up_to_nothing_over_the_trajectories_that_have_it(
    rewards: list[float], lengths: list[int], discount: float
) -> None:
    lengths = lengths[: len(rewards)]
    assume(max(lengths) > 1)
    told = credits(lengths, rewards, 1.0, discount)
    for turn in range(max(lengths)):
        there = [line[turn] for line in told if len(line) > turn]
        assert sum(there) == pytest.approx(0.0, abs=1e-9)


def test_without_a_discounts_memory_only_the_last_turns_differ() -> None:
    told = credits([3, 3], [1.0, 0.0], share=1.0, discount=0.0)
    assert told == [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]]


def test_spread_divides_where_the_advantage_divides_by_it() -> None:
    told = credits([2, 2], [1.0, 0.0], 1.0, 1.0, advantage="grpo")
    expected = ADVANTAGES.open("grpo", {})([1.0, 0.0])
    assert told == [[expected[0]] * 2, [expected[1]] * 2]


@pytest.mark.parametrize(("turns", "share"), [([1, 1, 1], 0.7), ([3, 2, 1], 0.0)])
def test_answers_of_one_turn_have_no_credits_and_neither_has_anything_where_it_is_off(
    turns: list[int], share: float
) -> None:
    group = played(turns, [1.0, 0.0, 0.5])
    assert TurnCredit(CENTRED, share, 0.5)(group, CENTRED(group.rewards)) == []


@given(rewards=REWARDS, lengths=st.lists(st.integers(1, 5), min_size=6, max_size=6))
def test_no_turn_is_imitated_of_anothers_trajectory_that_is_not(
    rewards: list[float], lengths: list[int]
) -> None:
    lengths = lengths[: len(rewards)]
    assume(max(lengths) > 1)
    own, other = (credits(lengths, rewards, 1.0, 0.5, own=own) for own in (True, False))
    for mine, theirs, whole in zip(own, other, CENTRED(rewards), strict=True):
        assert theirs == (mine if whole > 0 else [min(0.0, each) for each in mine])


def in_turns(seed: int = 0) -> tuple[Terms, torch.Tensor]:
    """Terms with gaps in their rows, and an advantage for each turn."""
    random = torch.Generator().manual_seed(seed)
    made = terms(seed, rows=5, tokens=11, drift=0.02)
    gaps = torch.rand(made.mask.shape, generator=random) < 0.7
    made = replace(made, mask=made.mask & gaps)
    begins = made.mask.clone()
    begins[:, 1:] &= ~made.mask[:, :-1]
    values = torch.randn((5, 12), generator=random)
    return made, values.gather(1, begins.cumsum(-1))


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("seed", range(5))
def test_every_token_has_the_gradient_of_a_row_with_its_turns_advantage(
    name: str, seed: int
) -> None:
    made, given = in_turns(seed)
    loss = LOSSES.load(name)(WIDE)
    by_token = torch.zeros_like(made.prox)
    for value in given.unique():
        alike = replace(made, advantages=torch.full((5,), float(value)))
        by_token = torch.where(given == value, gradient(loss, alike), by_token)
    expanded = torch.autograd.grad(loss(by_turn(made, given)), made.cur)[0]
    torch.testing.assert_close(expanded, torch.where(made.mask, by_token, 0.0))


def test_turns_without_advantages_of_their_own_are_the_same_terms() -> None:
    made, _ = in_turns()
    assert by_turn(made, None) is made


def test_under_gspo_a_turn_is_a_sequence() -> None:
    made, given = in_turns()
    expanded = by_turn(made, given)
    runs = [len(turns_of(line)) for line in made.mask.tolist()]
    assert len(expanded.mask) == sum(runs)
    assert torch.equal(expanded.mask.sum(), made.mask.sum())
    learner = Learner(random_policy(), changed(CONFIG, loss="gspo", turn_credit=0.5))
    (row,) = learner.rows([played([3, 2, 1], [1.0, 0.0, 0.0])])
    assert row.share == 1 / 6
    (row,) = learner.rows([played([1, 1, 1], [1.0, 0.0, 0.0])])
    assert row.share == 1 / 3


LONG = [played([3, 2, 1, 4], [1.0, 0.0, 0.5, 0.0], seed=1), played([2, 2], [0.0, 1.0], seed=2)]
CREDITED = changed(CONFIG, turn_credit=0.5)


@pytest.mark.parametrize("loss", LOSSES.own)
def test_answers_of_one_turn_are_learned_to_the_bit_as_ever(loss: str) -> None:
    plain, credited = (changed(each, loss=loss) for each in (CONFIG, CREDITED))
    assert torch.equal(gradient_of(MIXED, credited), gradient_of(MIXED, plain))
    whole = gradient_of(LONG, plain)
    assert torch.equal(gradient_of(LONG, changed(credited, turn_credit=0.0)), whole)
    assert not torch.allclose(gradient_of(LONG, credited), whole)


@pytest.mark.parametrize("loss", LOSSES.own)
@pytest.mark.parametrize("budget", [1, 24, 60])
def test_the_gradient_does_not_depend_on_how_trajectories_are_split(loss: str, budget: int) -> None:
    config = changed(CREDITED, loss=loss)
    groups = [*MIXED, *LONG]
    torch.testing.assert_close(
        gradient_of(groups, changed(config, micro_batch_tokens=budget)),
        gradient_of(groups, config),
        atol=1e-6,
        rtol=1e-4,
    )


def apart(group: TrainingGroup, place: int, turn: int) -> TrainingGroup:
    """The group, of which one turn of one trajectory is trained on."""
    done = []
    for number, completion in enumerate(group.completions):
        kept = turns_of(completion.trained)[turn] if number == place else slice(0, 0)
        trained = [False] * len(completion.ids)
        trained[kept] = [True] * len(trained[kept])
        done.append(replace(completion, trained=tuple(trained)))
    return replace(group, completions=tuple(done))


def test_an_update_is_the_sum_of_its_turns_each_by_its_advantage() -> None:
    config = changed(CONFIG, advantage="dr_grpo", turn_credit=0.7, turn_discount=0.5)
    group = LONG[0]
    told = credits([3, 2, 1, 4], group.rewards, 0.7)
    whole = CENTRED(group.rewards)
    tokens = sum(sum(completion.trained) for completion in group.completions)
    plain = changed(config, turn_credit=0.0)
    total = torch.zeros(())
    for place, line in enumerate(told):
        for turn, credit in enumerate(line):
            alone = apart(group, place, turn)
            count = sum(alone.completions[place].trained)
            total = total + gradient_of([alone], plain) * (credit / whole[place]) * count / tokens
    torch.testing.assert_close(gradient_of([group], config), total, atol=1e-6, rtol=1e-4)


def test_what_is_cut_keeps_the_credit_of_its_turns() -> None:
    config = changed(CREDITED, max_completion_tokens=5)
    (whole,) = Learner(random_policy(), CREDITED).rows(LONG[:1])
    (cut,) = Learner(random_policy(), config).rows(LONG[:1])
    assert [line[:5] for line in whole.credits] == list(cut.credits)


def test_parts_of_a_row_keep_what_is_theirs() -> None:
    (row,) = Learner(random_policy(), CREDITED).rows(LONG[:1])
    assert [part.credits for part in row.parts()] == [(line,) for line in row.credits]
    (row,) = Learner(random_policy(), CREDITED).rows(MIXED[:1])
    assert [part.credits for part in row.parts()] == [()] * len(row.completions)


@pytest.mark.parametrize("correction", ["none", "tis", "tapered", "better"])
def test_trajectories_of_others_are_learned_with_every_correction(correction: str) -> None:
    foreign = [replace(group, own=False) for group in LONG]
    learned = gradient_of(foreign, CREDITED, EVEN, correction=correction)
    assert learned.isfinite().all() and torch.count_nonzero(learned)


def test_what_is_read_behind_the_last_turn_changes_no_credit() -> None:
    group = LONG[0]
    answered = trajectory(100, 3, answered=True)
    longer = replace(group, completions=(answered, *group.completions[1:]))
    rule = TurnCredit(CENTRED, 0.5, 0.5)
    first, second = (rule(each, CENTRED(group.rewards))[0] for each in (group, longer))
    assert second[: len(first)] == first and not any(second[len(first) :])
