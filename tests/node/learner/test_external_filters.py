from __future__ import annotations

import dataclasses

import pytest
import torch

from node.config.learning import LearnerSection
from node.learner.learner import Learner
from node.learner.off_policy import MIN_SCORED, Answer, budget, overlong, unlikely
from tests.node.learner.test_influence import drawn
from tests.node.learner.test_learner import weights
from tests.support import random_policy


def test_a_budget_is_twice_what_own_completions_take_and_unknown_for_few():
    assert budget([10] * 31) is None
    assert budget([10] * 95 + [500] * 5) == 28
    answer = Answer("", (0,) * 29, "text", 28, elsewhere=False)
    assert overlong(answer)
    assert not overlong(dataclasses.replace(answer, ids=(0,) * 28))
    assert not overlong(dataclasses.replace(answer, budget=None))


def test_text_is_unlikely_by_its_median_or_its_low_quantile_and_never_for_a_single_surprise():
    likely, surprise, noise = -0.5, -14.0, -5.0
    rows = [
        [likely] * 12,
        [likely] * 11 + [surprise],
        [likely] * 8 + [surprise] * 4,
        [noise] * 12,
        [noise] * (MIN_SCORED - 1) + [0.0] * (12 - MIN_SCORED + 1),
    ]
    mask = torch.ones(5, 12, dtype=torch.bool)
    mask[4, MIN_SCORED - 1 :] = False
    found = unlikely(torch.tensor(rows), mask)
    assert found.tolist() == [False, False, True, True, False]


@pytest.mark.parametrize("epochs", [1, 2])
def test_unlikely_right_answers_are_not_imitated_and_counted(epochs):
    """Mallory's random text is not taken up; without the floor it is."""
    group = drawn(0, 2, 20)
    alone = dataclasses.replace(
        group,
        completions=(
            dataclasses.replace(group.completions[0], trained=(False,) * 20),
            group.completions[1],
        ),
    )
    config = LearnerSection(lr=1e-3, epochs=epochs)
    for floor in (False, True):
        policy = random_policy()
        before = weights(policy)
        stats = Learner(policy, config, floor=floor).update([alone])
        assert stats.unlikely == floor
        assert torch.equal(weights(policy), before) == floor
