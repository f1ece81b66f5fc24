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


def answers(*, local=False, rewards=REWARDS):
    done = tuple(
        TrainingCompletion(tuple(range(n, n + length)), (True,) * length)
        for n, length in enumerate(LENGTHS)
    )
    return TrainingGroup((1, 2), done, tuple(rewards), local)


def learner(correction="better"):
    return Learner(random_policy(), CONFIG, correction=correction)


def lengths(reader, group):
    return [len(c.ids) for row in reader.rows([group]) for c in row.completions]


def test_better_correction_reads_only_peer_answers_above_the_mean():
    assert lengths(learner(), answers()) == [2, 12]
    assert lengths(learner(), answers(rewards=(0.3, 0.1, 0.2, 0.2, 0.9, 0.1))) == [12]
    assert lengths(learner(), answers(local=True)) == list(LENGTHS), "all local answers are read"
    for correction in ("none", "tis", "tapered"):
        assert lengths(learner(correction), answers()) == list(LENGTHS)


def test_skipped_answers_count_in_the_group_mean_and_get_no_number():
    (few,), (every,) = (learner(how).rows([answers()]) for how in ("better", "tapered"))
    assert few.share == every.share
    assert few.advantages == (every.advantages[0], every.advantages[4])
    groups = [answers(), answers(local=True), answers()]
    assert [row.first for row in learner().rows(groups)] == [0, 2, 8]
    assert len(learner().update(groups).useful) == 2


def test_group_is_skipped_if_right_answers_have_no_trained_token():
    group, masked = answers(rewards=(0.0,) * 5 + (1.0,)), TrainingCompletion((5,), (False,))
    group = replace(group, completions=(*group.completions[:-1], masked))
    reader = learner()
    assert reader.rows([group]) == []
    stats = reader.update([group])
    assert stats.skipped and stats.useful == (0.0,)


def test_skipped_answers_do_not_affect_gradient():
    """The two groups differ only in wrong answers, which are not read."""
    original, other = answers(), TrainingCompletion(tuple(range(40, 49)), (True,) * 9)
    right, _, *rest = original.completions
    groups = original, replace(original, completions=(right, other, *rest))
    first, second = (gradient_of([g], spread=EVEN, correction="better") for g in groups)
    assert torch.count_nonzero(first) and torch.equal(first, second)


@pytest.mark.parametrize("loss", LOSSES.builtin)
@pytest.mark.parametrize("budget", [1, 24, 60])
def test_the_gradient_does_not_depend_on_how_trajectories_are_split(loss, budget):
    config, groups = changed(CONFIG, loss=loss), [*MIXED, *LONG]
    split = gradient_of(groups, changed(config, micro_batch_tokens=budget))
    assert_close(split, gradient_of(groups, config), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("correction", ["none", "tis", "tapered", "better"])
def test_every_correction_learns_from_peer_trajectories(correction):
    gradient = gradient_of(external(LONG), CONFIG, EVEN, correction=correction)
    assert gradient.isfinite().all() and torch.count_nonzero(gradient)
