from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from node.config.registry import LOSSES
from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from tests.node.learner.parts import CONFIG, EVEN, MIXED, external, gradient_of, played
from tests.support import changed, random_policy

LENGTHS = (2, 9, 3, 8, 12, 1)
REWARDS = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
LONG = [played([3, 2, 1, 4], [1.0, 0.0, 0.5, 0.0], seed=1), played([2, 2], [0.0, 1.0], seed=2)]


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


@pytest.mark.parametrize("loss", LOSSES.own)
@pytest.mark.parametrize("budget", [1, 24, 60])
def test_the_gradient_does_not_depend_on_how_trajectories_are_split(loss, budget):
    config, groups = changed(CONFIG, loss=loss), [*MIXED, *LONG]
    split = gradient_of(groups, changed(config, micro_batch_tokens=budget))
    assert_close(split, gradient_of(groups, config), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("correction", ["none", "tis", "tapered", "better"])
def test_trajectories_of_others_are_learned_with_every_correction(correction):
    learned = gradient_of(external(LONG), CONFIG, EVEN, correction=correction)
    assert learned.isfinite().all() and torch.count_nonzero(learned)
