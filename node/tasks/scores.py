"""Completions of one task, scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.tasks.answer_extraction import extract
from node.tasks.chance import kept
from node.tasks.task import ScoringError, Task, TaskSource


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards in the order of the completions, and how many of them tripped their verifier."""

    rewards: list[float]
    unreadable: int


def score(source: TaskSource, task: Task, texts: Sequence[str]) -> Scores:
    """Score whole completions as answers to a task of ``source``.

    An answer that trips its verifier is a wrong answer.

    Raises:
        ScoringError: the env gave something that is no reward.
        MemoryError, RecursionError: a verdict would depend on the machine.
    """
    rewards, unreadable = [], 0
    with kept():
        for text in texts:
            try:
                rewards.append(source.score(task, extract(text, source.extract)))
            except (MemoryError, RecursionError, ScoringError):
                raise
            except Exception:  # noqa: BLE001 - see above
                rewards.append(0.0)
                unreadable += 1
    return Scores(rewards, unreadable)
