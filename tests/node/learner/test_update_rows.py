"""Which of an update's completions are read at all."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from node.learner.batches import TrainingCompletion, TrainingGroup
from node.learner.learner import Learner
from tests.node.learner.test_learner import CONFIG, EVEN, gradient_of
from tests.support import random_policy

LENGTHS = (2, 9, 3, 8, 12, 1)
REWARDS = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)


def answers(*, own: bool = False, rewards: Sequence[float] = REWARDS) -> TrainingGroup:
    done = tuple(
        TrainingCompletion(tuple(range(n, n + length)), (True,) * length)
        for n, length in enumerate(LENGTHS)
    )
    return TrainingGroup((1, 2), done, tuple(rewards), own)


def learner(correction: str = "better") -> Learner:
    return Learner(random_policy(), CONFIG, correction=correction)


def lengths(reader: Learner, group: TrainingGroup) -> list[int]:
    return [len(c.ids) for row in reader.rows([group]) for c in row.completions]


def test_of_others_answers_those_are_read_that_are_better_than_their_mean() -> None:
    assert lengths(learner(), answers()) == [2, 12]
    graded = answers(rewards=(0.3, 0.1, 0.2, 0.2, 0.9, 0.1))
    assert lengths(learner(), graded) == [12]


@pytest.mark.parametrize("correction", ["none", "tis", "tapered"])
def test_other_corrections_read_all(correction: str) -> None:
    assert lengths(learner(correction), answers()) == list(LENGTHS)


def test_own_answers_are_all_read() -> None:
    assert lengths(learner(), answers(own=True)) == list(LENGTHS)


def test_what_is_not_read_counts_in_the_mean_over_its_group() -> None:
    some, every = learner(), learner("tapered")
    (few,), (all_of_them,) = some.rows([answers()]), every.rows([answers()])
    assert few.share == all_of_them.share
    assert few.advantages == (all_of_them.advantages[0], all_of_them.advantages[4])


def test_of_a_group_whose_right_answers_hold_no_text_nothing_is_read() -> None:
    group = answers(rewards=(0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    masked = TrainingCompletion((5,), (False,))
    group = TrainingGroup(group.prompt_ids, (*group.completions[:-1], masked), group.rewards, False)
    reader = learner()
    assert reader.rows([group]) == []
    stats = reader.update([group])
    assert stats.skipped and stats.useful == (0.0,)


def test_nothing_is_learned_from_what_is_not_read() -> None:
    """Two groups with the same right answers, and different wrong ones that are not read."""
    changed = answers()
    other = TrainingCompletion(tuple(range(40, 49)), (True,) * 9)
    done = (changed.completions[0], other, *changed.completions[2:])
    changed = TrainingGroup(changed.prompt_ids, done, changed.rewards, own=False)
    first, second = (
        gradient_of([each], spread=EVEN, correction="better") for each in (answers(), changed)
    )
    assert torch.count_nonzero(first) and torch.equal(first, second)


def test_numbers_of_completions_are_those_that_are_read() -> None:
    groups = [answers(), answers(own=True), answers()]
    assert [row.first for row in learner().rows(groups)] == [0, 2, 8]
    assert len(learner().update(groups).useful) == 2
