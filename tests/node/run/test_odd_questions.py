"""Questions that a policy cannot answer are left out, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from swarm.task_ref import TaskRef
from tests.node.rollout.overlap_parts import Teacher
from tests.node.run import trainer_parts
from tests.node.run.trainer_parts import Parts

LONGER_THAN_ANY_CONTEXT = 600
ROUNDS = 6


class Real(TransformersEngine):
    def __init__(self, policy: Policy, told: Callable[[str], None]) -> None:
        super().__init__(policy, seed=0)


@pytest.mark.parametrize("streaming", [False, True], ids=["alternate", "overlap"])
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

    monkeypatch.setattr(trainer_parts, "Teacher", Odd)
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
    assert parts.counters.snapshot()[counter] > 0
    assert "rounds_failed" not in parts.counters.snapshot()
