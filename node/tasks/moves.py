"""Turns of a policy on their way to an environment, and what comes back."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from swarm.groups import TaskRef
from swarm.verification import JudgeRefused


@dataclass(frozen=True, slots=True)
class Move:
    """One more turn of a trajectory.

    Attributes:
        key: names the trajectory among those that are played now.
        actions: every turn of the policy so far, the new one last.
        final: none will follow, whatever is answered.
    """

    key: int
    task: TaskRef
    actions: tuple[str, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """What an environment made of a turn.

    Attributes:
        observation: empty where none will be read.
        over: whether the environment has ended.
        reward: of the whole trajectory, once nothing follows; None while it goes on.
    """

    observation: str
    over: bool
    reward: float | None


Moved = Answered | JudgeRefused
"""A trajectory whose environment is lost has no more turns, and no reward."""


def settled(moved: Moved) -> Future[Moved]:
    """What has come already, for callers that would wait for it."""
    outcome: Future[Moved] = Future()
    outcome.set_result(moved)
    return outcome
