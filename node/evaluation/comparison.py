"""Two policies on the same held-out tasks, and whether one is better than the other."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from node.evaluation.estimate import Estimate
from node.evaluation.evaluator import Evaluation
from swarm.groups import TaskRef


@dataclass(frozen=True, slots=True)
class Difference:
    """What two policies earned on some tasks, paired by task.

    Attributes:
        tasks: how many.
        first, second: mean rewards, 0 to 1.
        gain: second less first, a value a task; its margin is half of the 95 % t interval.
    """

    tasks: int
    first: float
    second: float
    gain: Estimate


@dataclass(frozen=True, slots=True)
class Disputed:
    """A task that one of them solves more often than the other.

    Attributes:
        prompt: None where it was not kept.
        first, second: mean rewards of their completions, 0 to 1.
    """

    task: TaskRef
    prompt: str | None
    first: float
    second: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations side by side.

    Attributes:
        all: over every task.
        families: by family, in the order of the tasks.
        disputed: tasks on which they differ, those with the largest difference first.
    """

    all: Difference
    families: dict[str, Difference]
    disputed: tuple[Disputed, ...]

    @classmethod
    def of(cls, first: Evaluation, second: Evaluation) -> Comparison:
        """Compare two evaluations of the same tasks.

        Raises:
            ValueError: the tasks are not the same.
        """
        if first.tasks != second.tasks:
            raise ValueError("only evaluations of the same tasks can be compared")
        prompts = first.prompts or (None,) * len(first.tasks)
        rows = [
            Disputed(task, prompt, fmean(one), fmean(other))
            for task, prompt, one, other in zip(
                first.tasks, prompts, first.rewards, second.rewards, strict=True
            )
        ]
        families: dict[str, list[Disputed]] = {}
        for row in rows:
            families.setdefault(row.task.env, []).append(row)
        disputed = [row for row in rows if row.first != row.second]
        disputed.sort(key=lambda row: -abs(row.second - row.first))
        return cls(
            _difference(rows),
            {env: _difference(part) for env, part in families.items()},
            tuple(disputed),
        )


def _difference(rows: list[Disputed]) -> Difference:
    return Difference(
        tasks=len(rows),
        first=fmean(row.first for row in rows),
        second=fmean(row.second for row in rows),
        gain=Estimate.of([row.second - row.first for row in rows]),
    )
