"""Questions that a policy cannot answer, or nobody can build, are left out, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from swarm.groups import Split, TaskRef
from swarm.verification import CRASHED, JudgeRefused
from tests.node.rollout.overlap_parts import Teacher
from tests.node.run import trainer_parts
from tests.node.run.trainer_parts import Parts

LONGER_THAN_ANY_CONTEXT = 600
ROUNDS = 6


class Real(TransformersEngine):
    def __init__(self, policy: Policy, told: Callable[[str], None]) -> None:
        super().__init__(policy, seed=0)


@pytest.mark.parametrize("streaming", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize(
    ("length", "counter"),
    [(0, "own_prompts_empty"), (LONGER_THAN_ANY_CONTEXT, "own_prompts_too_long")],
    ids=["empty", "too long"],
)
def test_every_third_question_cannot_be_answered(
    monkeypatch: pytest.MonkeyPatch, streaming: bool, length: int, counter: str
) -> None:
    class Odd(Teacher):
        """The same question is odd whenever it is asked."""

        def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
            return ["?" * (5 if task.seed % 3 else length) for task in tasks]

    parts = trained(monkeypatch, Odd, streaming)
    assert parts.counters.snapshot()[counter] > 0


@pytest.mark.parametrize("streaming", [False, True], ids=["sync", "async"])
def test_three_of_four_tasks_cannot_be_built(
    monkeypatch: pytest.MonkeyPatch, streaming: bool
) -> None:
    class Often(Teacher):
        """Fails for the same tasks whenever it is asked, never for held-out ones."""

        asked: ClassVar[list[TaskRef]] = []

        def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
            drawn = [task for task in tasks if task.split is Split.TRAIN]
            self.asked.extend(task for task in drawn if task not in self.asked)
            if any(self.asked.index(task) % 4 < 3 for task in drawn):
                raise JudgeRefused(CRASHED, "this one cannot be built")
            return super().prompts(tasks)

    parts = trained(monkeypatch, Often, streaming)
    assert parts.counters.snapshot()["own_groups_unscored{reason=crashed}"] > 0


def trained(monkeypatch: pytest.MonkeyPatch, teacher: type[Teacher], streaming: bool) -> Parts:
    """A trainer of one task a round, after some rounds of which none failed."""
    monkeypatch.setattr(trainer_parts, "Teacher", teacher)
    monkeypatch.setattr(trainer_parts, "Closing", Real)
    parts = Parts(
        monkeypatch,
        streaming=streaming,
        mixture__local=1,
        schedule__eval_every=1000,
        engine__max_new_tokens=4,
    )
    parts.run(ROUNDS)
    assert len(parts.outcomes) == ROUNDS
    assert "rounds_failed" not in parts.counters.snapshot()
    return parts
