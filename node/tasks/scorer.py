"""Interface for building tasks, playing environments and scoring answers."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

from node.environments.environment import EpisodeError, raised
from node.tasks.task import ScoringError, Task, TaskSource, kept
from swarm.common.util import counted
from swarm.groups import TaskRef
from swarm.verification import (
    UNAVAILABLE,
    UNKNOWN_ENV,
    Answer,
    Answers,
    Requests,
    Scored,
    Scores,
    TrajectoryTexts,
    VerifierError,
    one_outcome,
)


@dataclass(frozen=True, slots=True)
class Move:
    """The next turn of a trajectory; ``actions`` includes all earlier ones.

    ``key`` identifies the trajectory; no turn follows a ``final`` one.
    """

    key: int
    task: TaskRef
    actions: tuple[str, ...]
    final: bool


@dataclass(frozen=True, slots=True)
class Answered:
    """An environment's response to a turn; ``over``: the environment has ended.

    After the last turn ``observation`` is empty and ``reward`` is the whole trajectory's. ``fault``
    is the error that the environment raised, if any.
    """

    observation: str
    over: bool
    reward: float | None
    fault: str = field(default="", compare=False)


Moved = Answered | VerifierError  # ``VerifierError``: lost, with no more turns and no reward


def settled(moved: Moved) -> Future[Moved]:
    """Wrap an available response in a completed future."""
    future: Future[Moved] = Future()
    future.set_result(moved)
    return future


@dataclass(frozen=True, slots=True)
class OpenEnv:
    """A verifier's knowledge of an env that it has opened."""

    levels: int
    replayable: bool = True
    waits: bool = False
    hidden: bool = False

    @classmethod
    def of(cls, source: TaskSource) -> OpenEnv:
        environment = source.environment
        if environment is None:
            return cls(source.levels)
        return cls(source.levels, environment.replayable, environment.waits, environment.hidden)


class Scorer(Protocol):
    """Interface of :class:`~node.tasks.verifier.verifier.Verifier` and its stand-ins."""

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        """Return the prompts of tasks, in order; raise ``VerifierError`` if one fails."""

    @property
    def environments(self) -> frozenset[str]:
        """Names of the multi-turn envs; none by default."""
        return frozenset()

    @property
    def opened_envs(self) -> Mapping[str, OpenEnv]:
        """Envs opened so far, by name; none by default."""
        return {}

    @property
    def unrepeatable(self) -> frozenset[str]:
        """Multi-turn envs that are not replayable, so not verifiable."""
        return frozenset(name for name, env in self.opened_envs.items() if not env.replayable)

    @property
    def hidden(self) -> frozenset[str]:
        """Multi-turn envs whose rewards depend on what the observations do not show."""
        return frozenset(name for name, env in self.opened_envs.items() if env.hidden)

    @property
    def waiting(self) -> frozenset[str]:
        """Asynchronous multi-turn envs; any number of their turns wait concurrently."""
        return frozenset(name for name, env in self.opened_envs.items() if env.waits)

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns, one per trajectory at a time; return a future per move, in order.

        Each is set when its environment responds, and never raises for what an environment does.
        """
        return [settled(VerifierError(UNKNOWN_ENV, f"{m.task.env!r} is not played")) for m in moves]

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """Take turns, wait for all, and return the responses in order."""
        return [future.result() for future in self.play_each(moves)]

    def verify(self, task: TaskRef, texts: Answers) -> Scores:
        """Rebuild one task and score answers to it."""

    def verify_some(self, asked: Requests) -> Sequence[Scored]:
        """Score the first groups: see :meth:`swarm.verification.GroupVerifier.verify_some`."""
        request = asked[0]
        return one_outcome(lambda: self.verify(request.task, request.texts))


def verify_all(scorer: Scorer, asked: Requests) -> Iterator[Scored]:
    """Yield the verification result of each group, in order."""
    count = 0
    while count < len(asked):
        outcomes = scorer.verify_some(asked[count:])
        yield from outcomes
        count += len(outcomes)


def buildable(
    scorer: Scorer, tasks: Sequence[TaskRef], unscored: Callable[[int, VerifierError], None]
) -> list[str | None]:
    """Return the prompts of tasks, None for each that cannot be built.

    ``unscored`` receives its index and the reason. Raises ``VerifierError`` if none can be built.
    """
    try:
        return list(scorer.prompts(tasks))
    except VerifierError as error:
        if error.reason == UNAVAILABLE:
            raise
    prompts: list[str | None] = []
    for number, task in enumerate(tasks):
        try:
            prompts += scorer.prompts([task])
        except VerifierError as error:
            if error.reason == UNAVAILABLE:
                raise
            unscored(number, error)
            prompts.append(None)
    return prompts


def nothing_built(count: int) -> VerifierError:
    """Return the error to raise if none of ``count`` tasks could be built."""
    reason = f"none of {counted(count, 'task')} can be built; the log says why"
    return VerifierError(UNAVAILABLE, reason)


MOST_FAULT = 200  # characters


class OverLimit(BaseException):
    """An answer used up its CPU time.

    Not an ``Exception``, because scorers of libraries catch those and would continue.
    """


@dataclass(frozen=True, slots=True)
class Reading:
    """The answer ``read`` in a completion, and a ``right`` one; None if there is none to show."""

    read: str | None = None
    right: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRewards:
    """Rewards in completion order, and how many answers made the scorer raise.

    ``over`` has the indexes of answers that exceeded their CPU limit, ended the process that scored
    them alone, or were slow. ``fault`` is the first error.
    """

    rewards: list[float]
    unreadable: int
    over: list[int] = field(default_factory=list)
    fault: str = ""


def score(
    source: TaskSource,
    task: Task,
    answers: Iterable[Answer],
    limit: Callable[[], AbstractContextManager[None]] = nullcontext,
    slow: float = math.inf,
) -> GroupRewards:
    """Score whole completions as answers to a task; trajectories are replayed.

    An answer that makes the scorer raise, or exceeds the CPU time of ``limit``, which raises
    ``OverLimit``, counts as wrong. One that takes ``slow`` seconds of CPU time is slow. Raises
    NotReplayed: a replay does not reproduce the trajectory; ScoringError: the env returned an
    invalid reward; MemoryError, RecursionError: the result would depend on the machine.
    """
    rewards: list[float] = []
    over_limit: list[int] = []
    unreadable, fault = 0, ""
    with kept():
        for number, answer in enumerate(answers):
            start, timed_out = time.process_time(), False
            if isinstance(answer, TrajectoryTexts):
                rewards.append(_replayed(source, task, answer))
            else:
                try:
                    with limit():
                        rewards.append(source.score(task, answer))
                except (MemoryError, RecursionError, ScoringError):
                    raise
                except (OverLimit, Exception) as error:  # noqa: BLE001 - see above
                    rewards.append(0.0)
                    unreadable += 1
                    timed_out = isinstance(error, OverLimit)
                    fault = fault or ("" if timed_out else fault_of(error))
            if timed_out or time.process_time() - start >= slow:
                over_limit.append(number)
    return GroupRewards(rewards, unreadable, over_limit, fault)


def fault_of(error: BaseException | None) -> str:
    """Return an error of a task's own code for its author, in one short line; empty for None."""
    return raised(error, MOST_FAULT) if error else ""


def _replayed(source: TaskSource, task: Task, turns: TrajectoryTexts) -> float:
    if source.environment is None:
        raise ScoringError(f"env {source.name!r} is answered in one turn")
    try:
        return source.environment.replay(task.entry, turns.texts, truncated=turns.truncated)
    except EpisodeError as error:
        raise ScoringError(f"env {source.name!r}: {error}") from error
