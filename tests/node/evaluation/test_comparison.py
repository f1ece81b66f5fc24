"""Two policies on the same tasks."""

from __future__ import annotations

import math
import random
from statistics import fmean

import pytest

from node.evaluation.comparison import Comparison
from node.evaluation.evaluator import Evaluation, heldout_tasks

TASKS = heldout_tasks([("add", 0), ("mul", 0)], 40)


def evaluation(*rewards: tuple[float, ...]) -> Evaluation:
    return Evaluation(TASKS[: len(rewards)], rewards)


def test_the_gain_is_the_mean_of_what_each_task_gained() -> None:
    found = Comparison.of(evaluation((0.0, 1.0), (0.0,)), evaluation((1.0, 1.0), (0.25,)))
    assert (found.all.tasks, found.all.first, found.all.second) == (2, 0.25, 0.625)
    assert found.all.gain.mean == 0.375
    assert found.all.gain.margin == pytest.approx(12.706 * 0.125)
    assert {env: part.gain.mean for env, part in found.families.items()} == {
        "add": 0.5,
        "mul": 0.25,
    }


def test_a_policy_compared_with_itself_gains_nothing_and_differs_nowhere() -> None:
    same = evaluation(*[(float(n % 2),) for n in range(40)])
    found = Comparison.of(same, same)
    assert found.all.gain.mean == found.all.gain.margin == 0.0
    assert not found.all.gain.beyond_noise
    assert found.disputed == ()


def test_tasks_that_are_disputed_most_come_first_with_their_prompts() -> None:
    first = Evaluation(TASKS[:3], ((1.0,), (0.5,), (0.0,)), prompts=("1+1", None, "3*3"))
    found = Comparison.of(first, evaluation((1.0,), (0.25,), (1.0,)))
    assert [(row.prompt, row.first, row.second) for row in found.disputed] == [
        ("3*3", 0.0, 1.0),
        (None, 0.5, 0.25),
    ]


def test_the_interval_holds_the_true_gain_in_nineteen_of_twenty_comparisons() -> None:
    rng, held = random.Random(0), 0
    for _ in range(400):
        base = [rng.random() * 0.5 for _ in TASKS]
        pairs = [
            [tuple(float(rng.random() < p + gain) for _ in range(8)) for p in base]
            for gain in (0.0, 0.2)
        ]
        gain = Comparison.of(evaluation(*pairs[0]), evaluation(*pairs[1])).all.gain
        assert gain.margin is not None
        held += abs(gain.mean - 0.2) < gain.margin
    assert math.isclose(held / 400, 0.95, abs_tol=3 * math.sqrt(0.95 * 0.05 / 400))


def test_pairing_by_task_narrows_the_interval_where_tasks_are_of_unequal_difficulty() -> None:
    rng = random.Random(1)
    easy = [n % 2 for n in range(len(TASKS))]
    first = evaluation(*[(float(rng.random() < 0.1 + 0.7 * e),) * 4 for e in easy])
    second = evaluation(*[tuple(min(1.0, r + 0.05) for r in row) for row in first.rewards])
    found = Comparison.of(first, second)
    assert found.all.gain.beyond_noise
    assert found.all.gain.mean == pytest.approx(
        fmean(found.families[env].gain.mean for env in ("add", "mul"))
    )


def test_other_tasks_are_not_compared() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        Comparison.of(evaluation((0.0,)), evaluation((0.0,), (1.0,)))
