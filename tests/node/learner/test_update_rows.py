from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from node.config.registry import ADVANTAGES, LOSSES
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from node.learner.losses import Clip
from node.learner.update_rows import TurnCredit, by_turn, turns_of
from tests.node.learner.parts import (
    CONFIG,
    EVEN,
    MIXED,
    external,
    gradient_of,
    played,
    trajectory,
)
from tests.node.learner.test_losses import gradient, terms
from tests.support import changed, random_policy

LENGTHS = (2, 9, 3, 8, 12, 1)
REWARDS = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CENTRED = ADVANTAGES.open("dr_grpo", {})
SUMMED = ("grpo", "dr_grpo", "cispo")
GRADES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=6)
TURNS = st.lists(st.integers(1, 5), min_size=6, max_size=6)
LONG = [played([3, 2, 1, 4], [1.0, 0.0, 0.5, 0.0], seed=1), played([2, 2], [0.0, 1.0], seed=2)]
CREDITED = changed(CONFIG, turn_credit=0.5)
GROUP = played([3, 2, 1, 4], [1.0, 0.0, 0.5, 0.0])


def answers(*, own=False, rewards=REWARDS):
    done = tuple(
        TrainingCompletion(tuple(range(n, n + length)), (True,) * length)
        for n, length in enumerate(LENGTHS)
    )
    return TrainingGroup((1, 2), done, tuple(rewards), own)


def learner(correction="better"):
    return Learner(random_policy(), CONFIG, correction=correction)


def lengths(reader, group):
    return [len(c.ids) for row in reader.rows([group]) for c in row.completions]


def test_of_others_answers_those_are_read_that_are_better_than_their_mean():
    assert lengths(learner(), answers()) == [2, 12]
    assert lengths(learner(), answers(rewards=(0.3, 0.1, 0.2, 0.2, 0.9, 0.1))) == [12]
    assert lengths(learner(), answers(own=True)) == list(LENGTHS), "own answers are all read"
    for correction in ("none", "tis", "tapered"):
        assert lengths(learner(correction), answers()) == list(LENGTHS)


def test_what_is_not_read_counts_in_the_mean_over_its_group_and_has_no_number():
    (few,), (every,) = (learner(how).rows([answers()]) for how in ("better", "tapered"))
    assert few.share == every.share
    assert few.advantages == (every.advantages[0], every.advantages[4])
    groups = [answers(), answers(own=True), answers()]
    assert [row.first for row in learner().rows(groups)] == [0, 2, 8]
    assert len(learner().update(groups).useful) == 2


def test_of_a_group_whose_right_answers_hold_no_text_nothing_is_read():
    group, masked = answers(rewards=(0.0,) * 5 + (1.0,)), TrainingCompletion((5,), (False,))
    group = replace(group, completions=(*group.completions[:-1], masked))
    reader = learner()
    assert reader.rows([group]) == []
    stats = reader.update([group])
    assert stats.skipped and stats.useful == (0.0,)


def test_nothing_is_learned_from_what_is_not_read():
    """Two groups with the same right answers, and different wrong ones that are not read."""
    asked, other = answers(), TrainingCompletion(tuple(range(40, 49)), (True,) * 9)
    right, _, *rest = asked.completions
    groups = asked, replace(asked, completions=(right, other, *rest))
    first, second = (gradient_of([g], spread=EVEN, correction="better") for g in groups)
    assert torch.count_nonzero(first) and torch.equal(first, second)


def credits(turns, rewards, share, discount=0.5, *, own=True, advantage="dr_grpo"):
    """Of each trajectory, its turns' advantages; every token of a turn has to have the same."""
    rule = ADVANTAGES.open(advantage, {})
    group = played(turns, rewards, own=own)
    told = []
    lines = TurnCredit(rule, share, discount)(group, rule(rewards))
    for line, completion in zip(lines, group.completions, strict=True):
        assert len(line) == len(completion.ids)
        parts = [set(line[place]) for place in turns_of(completion.trained)]
        assert all(len(part) == 1 for part in parts)
        told.append([part.pop() for part in parts])
    return told


@pytest.mark.parametrize(
    ("trained", "turns"),
    [
        ([True, True, False, True], [slice(0, 2), slice(3, 4)]),
        ([False, True, False], [slice(1, 2)]),
        ([True], [slice(0, 1)]),
        ([False], []),
        ([], []),
    ],
)
def test_turns_are_what_the_policy_wrote_between_two_answers(trained, turns):
    assert turns_of(trained) == turns


def test_a_turn_is_measured_against_the_same_turn_of_those_that_have_one():
    """Returns of the first turns 1/4, 0 and 1, of the second 1/2 and 0, of the third 1."""
    turns, rewards = [3, 2, 1], [1.0, 0.0, 1.0]
    told, half = credits(turns, rewards, 1.0), credits(turns, rewards, 0.5)
    first = (0.25 + 0.0 + 1.0) / 3
    expected = [[0.25 - first, 0.25, 0.0], [-first, -0.25], [1.0 - first]]
    assert told == [pytest.approx(line) for line in expected]
    for line, own, parts in zip(half, CENTRED(rewards), told, strict=True):
        assert line == pytest.approx([(own + part) / 2 for part in parts]), "half and half"
    told = credits([3, 3], [1.0, 0.0], share=1.0, discount=0.0)
    assert told == [[0.0, 0.0, 0.5], [0.0, 0.0, -0.5]], "without a discount's memory"
    told = credits([2, 2], [1.0, 0.0], 1.0, 1.0, advantage="grpo")
    expected = ADVANTAGES.open("grpo", {})([1.0, 0.0])
    assert told == [[expected[0]] * 2, [expected[1]] * 2], "the advantage divides by the spread"


@given(rewards=GRADES, turns=st.integers(2, 5), share=st.floats(0.01, 1.0))
def test_undiscounted_turns_of_equally_long_trajectories_have_the_advantage_of_these(
    rewards, turns, share
):
    lines = credits([turns] * len(rewards), rewards, share, 1.0)
    for line, own in zip(lines, CENTRED(rewards), strict=True):
        assert line == pytest.approx([own] * turns)


@given(rewards=GRADES, lengths=TURNS, discount=st.floats(0.0, 1.0))
def test_a_turns_advantages_add_up_to_nothing_and_none_of_anothers_failure_is_imitated(
    rewards, lengths, discount
):
    lengths = lengths[: len(rewards)]
    assume(max(lengths) > 1)
    own, other = (credits(lengths, rewards, 1.0, discount, own=own) for own in (True, False))
    for turn in range(max(map(len, own))):
        there = [line[turn] for line in own if len(line) > turn]
        assert sum(there) == pytest.approx(0.0, abs=1e-9)
    for mine, theirs, whole in zip(own, other, CENTRED(rewards), strict=True):
        assert theirs == (mine if whole > 0 else [min(0.0, each) for each in mine])


@pytest.mark.parametrize(("turns", "share"), [([1, 1, 1], 0.7), ([3, 2, 1], 0.0)])
def test_answers_of_one_turn_have_no_credits_and_neither_has_anything_where_it_is_off(turns, share):
    group = played(turns, [1.0, 0.0, 0.5])
    assert TurnCredit(CENTRED, share, 0.5)(group, CENTRED(group.rewards)) == []


def in_turns(seed=0):
    """Terms with gaps in their rows, and an advantage for each turn."""
    random = torch.Generator().manual_seed(seed)
    made = terms(seed, rows=5, tokens=11, drift=0.02)
    gaps = torch.rand(made.mask.shape, generator=random) < 0.7
    made = replace(made, mask=made.mask & gaps)
    begins = made.mask.clone()
    begins[:, 1:] &= ~made.mask[:, :-1]
    return made, torch.randn((5, 12), generator=random).gather(1, begins.cumsum(-1))


@pytest.mark.parametrize("name", SUMMED)
@pytest.mark.parametrize("seed", range(5))
def test_every_token_has_the_gradient_of_a_row_with_its_turns_advantage(name, seed):
    made, given = in_turns(seed)
    loss = LOSSES.load(name)(Clip(1.0, 9.0))
    by_token = torch.zeros_like(made.prox)
    for value in given.unique():
        alike = replace(made, advantages=torch.full((5,), float(value)))
        by_token = torch.where(given == value, gradient(loss, alike), by_token)
    expanded = torch.autograd.grad(loss(by_turn(made, given)), made.cur)[0]
    assert_close(expanded, torch.where(made.mask, by_token, 0.0))
    assert by_turn(made, None) is made, "turns without advantages of their own"


def test_under_gspo_a_turn_is_a_sequence():
    made, given = in_turns()
    expanded = by_turn(made, given)
    assert len(expanded.mask) == sum(len(turns_of(line)) for line in made.mask.tolist())
    assert torch.equal(expanded.mask.sum(), made.mask.sum())
    for turns, share in (([3, 2, 1], 1 / 6), ([1, 1, 1], 1 / 3)):
        (row,) = rows_of(changed(CREDITED, loss="gspo"), played(turns, [1.0, 0.0, 0.0]))
        assert row.share == share


def rows_of(config, *groups):
    return Learner(random_policy(), config).rows(groups)


@pytest.mark.parametrize("loss", LOSSES.own)
def test_answers_of_one_turn_are_learned_to_the_bit_as_without_credit(loss):
    plain, credited = (changed(each, loss=loss) for each in (CONFIG, CREDITED))
    assert torch.equal(gradient_of(MIXED, credited), gradient_of(MIXED, plain))
    assert not torch.allclose(gradient_of(LONG, credited), gradient_of(LONG, plain))


@pytest.mark.parametrize("loss", LOSSES.own)
@pytest.mark.parametrize("budget", [1, 24, 60])
def test_the_gradient_does_not_depend_on_how_trajectories_are_split(loss, budget):
    config, groups = changed(CREDITED, loss=loss), [*MIXED, *LONG]
    split = gradient_of(groups, changed(config, micro_batch_tokens=budget))
    assert_close(split, gradient_of(groups, config), atol=1e-6, rtol=1e-4)


def test_an_update_is_the_sum_of_its_turns_each_by_its_advantage():
    config = changed(CONFIG, advantage="dr_grpo", turn_credit=0.7, turn_discount=0.5)
    group, total = LONG[0], torch.zeros(())
    whole, tokens = CENTRED(group.rewards), sum(sum(c.trained) for c in group.completions)
    masked = [replace(c, trained=(False,) * len(c.ids)) for c in group.completions]
    for place, line in enumerate(credits([3, 2, 1, 4], group.rewards, 0.7)):
        done = group.completions[place]
        for turn, credit in zip(turns_of(done.trained), line, strict=True):
            trained = tuple(turn.start <= n < turn.stop for n in range(len(done.ids)))
            one = (*masked[:place], replace(done, trained=trained), *masked[place + 1 :])
            alone = gradient_of([replace(group, completions=one)], changed(config, turn_credit=0.0))
            total = total + alone * (credit / whole[place]) * sum(trained) / tokens
    assert_close(gradient_of([group], config), total, atol=1e-6, rtol=1e-4)


def test_what_is_cut_and_parts_of_a_row_keep_the_credit_of_their_turns():
    (whole,) = rows_of(CREDITED, LONG[0])
    (cut,) = rows_of(changed(CREDITED, max_completion_tokens=5), LONG[0])
    assert [line[:5] for line in whole.credits] == list(cut.credits)
    assert [part.credits for part in whole.parts()] == [(line,) for line in whole.credits]
    (row,) = rows_of(CREDITED, MIXED[0])
    assert [part.credits for part in row.parts()] == [()] * len(row.completions)


@pytest.mark.parametrize("correction", ["none", "tis", "tapered", "better"])
def test_trajectories_of_others_are_learned_with_every_correction(correction):
    learned = gradient_of(external(LONG), CREDITED, EVEN, correction=correction)
    assert learned.isfinite().all() and torch.count_nonzero(learned)


def test_what_is_read_behind_the_last_turn_changes_no_credit():
    group, rule = LONG[0], TurnCredit(CENTRED, 0.5, 0.5)
    longer = replace(group, completions=(trajectory(100, 3, answered=True), *group.completions[1:]))
    first, second = (rule(each, CENTRED(group.rewards))[0] for each in (group, longer))
    assert second[: len(first)] == first and not any(second[len(first) :])
