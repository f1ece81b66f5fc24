"""The verdict on a policy that is new to a swarm's tasks."""

from __future__ import annotations

import pytest

from node.evaluation.evaluator import Assessment, Evaluation
from swarm.groups import Split, TaskRef

RIGHT, WRONG, MIXED = (1.0, 1.0), (0.0, 0.0), (1.0, 0.0)


def assessed(*rows: tuple[float, ...], unfit: int = 0, takes: bool = True) -> Assessment:
    tasks = tuple(TaskRef("sums", 0, seed, Split.HELDOUT) for seed in range(len(rows)))
    return Assessment.of(Evaluation(tasks, rows, unfit=unfit), takes=takes)


def test_figures_are_shares_of_the_tasks_tried() -> None:
    found = assessed(MIXED, WRONG, RIGHT, WRONG, unfit=1)
    assert (found.tasks, found.fit, found.reward, found.informative) == (4, 0.75, 0.375, 0.25)
    assert found.lines()[0].startswith(
        "tried on 4 tasks: 75% of prompts fit, reward 0.375, rewards differ in 25% of groups: "
    )


@pytest.mark.parametrize(
    ("rows", "takes", "verdict", "remedy"),
    [
        ((MIXED, WRONG), False, "can learn from its own rollouts", ""),
        ((WRONG, WRONG), True, "only from what others share", "--peers"),
        ((WRONG, WRONG), False, "cannot learn here", "mixture.external"),
        ((RIGHT, RIGHT), True, "nothing is left to learn", "tasks.weights"),
        ((RIGHT, WRONG), True, "only from what others share", "--peers"),
    ],
)
def test_the_verdict_says_from_whom_it_can_learn_and_what_to_do(
    rows: tuple[tuple[float, ...], ...], takes: bool, verdict: str, remedy: str
) -> None:
    (line,) = assessed(*rows, takes=takes).lines()
    assert verdict in line and remedy in line


def test_a_policy_that_most_prompts_are_too_long_for_is_told_so() -> None:
    assert len(assessed(MIXED, WRONG, unfit=1).lines()) == 1
    _, told = assessed(MIXED, WRONG, WRONG, unfit=2).lines()
    assert "do not fit" in told and "policy.model" in told and "tasks.weights" in told
