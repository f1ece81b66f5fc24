"""Completions of one task, scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.environments.episode import EpisodeError
from node.tasks.answer_extraction import extract
from node.tasks.chance import kept
from node.tasks.task import ScoringError, Task, TaskSource
from swarm.verification import Answer, Turns


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards in the order of the completions, and how many of them tripped their verifier."""

    rewards: list[float]
    unreadable: int


def score(source: TaskSource, task: Task, answers: Sequence[Answer]) -> Scores:
    """Score whole completions as answers to a task of ``source``; trajectories are replayed.

    An answer that trips its verifier is a wrong answer.

    Raises:
        NotReplayed: a trajectory is not what comes of playing it.
        ScoringError: the env gave something that is no reward.
        MemoryError, RecursionError: a verdict would depend on the machine.
    """
    rewards, unreadable = [], 0
    with kept():
        for answer in answers:
            if isinstance(answer, Turns):
                rewards.append(_replayed(source, task, answer))
                continue
            try:
                rewards.append(source.score(task, extract(answer, source.extract)))
            except (MemoryError, RecursionError, ScoringError):
                raise
            except Exception:  # noqa: BLE001 - see above
                rewards.append(0.0)
                unreadable += 1
    return Scores(rewards, unreadable)


def _replayed(source: TaskSource, task: Task, turns: Turns) -> float:
    if source.environment is None:
        raise ScoringError(f"env {source.name!r} is answered in one turn")
    try:
        return source.environment.replay(task.entry, turns.texts, cut=turns.cut)
    except EpisodeError as error:
        raise ScoringError(f"env {source.name!r}: {error}") from error
