"""The seam between whoever needs tasks and rewards and whatever builds and scores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from node.environments.environment import EpisodeError
from node.tasks.task import ScoringError, Task, TaskSource, extract, kept
from swarm.common.util import counted
from swarm.groups import TaskRef
from swarm.verification import (
    UNAVAILABLE,
    UNKNOWN_ENV,
    Answer,
    Asked,
    Judged,
    JudgeRefused,
    Turns,
    Verdict,
    one_outcome,
)


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


class Scorer(Protocol):
    """Builds tasks and scores answers; :class:`~node.tasks.verifier.verifier.Verifier` in nodes."""

    def prompts(self, tasks: Sequence[TaskRef]) -> list[str]:
        """The prompts of tasks, in their order."""
        ...

    @property
    def environments(self) -> frozenset[str]:
        """Names of the envs that are played, not answered in one turn; unless told, none."""
        return frozenset()

    @property
    def unrepeatable(self) -> frozenset[str]:
        """Those of them that never answer twice alike: no judge has a verdict on a trajectory."""
        return frozenset()

    @property
    def waiting(self) -> frozenset[str]:
        """Those of them that are asynchronous: their turns wait side by side, however many."""
        return frozenset()

    def play_each(self, moves: Sequence[Move]) -> list[Future[Moved]]:
        """Begin turns in :attr:`environments`, one of each trajectory at a time.

        Returns:
            In their order, what comes of each as soon as its own environment has answered. None
            raises for what an environment does.
        """
        return [settled(JudgeRefused(UNKNOWN_ENV, f"{m.task.env!r} is not played")) for m in moves]

    def play(self, moves: Sequence[Move]) -> list[Moved]:
        """Take turns, and wait for all of them; what comes of each, in their order."""
        return [outcome.result() for outcome in self.play_each(moves)]

    def judge(self, task: TaskRef, texts: Sequence[Answer]) -> Verdict:
        """Rebuild one task and score answers to it."""
        ...

    def judge_some(self, asked: Sequence[Asked]) -> Sequence[Judged]:
        """Judge the first of some groups, as :meth:`swarm.verification.Judge.judge_some` says."""
        first = asked[0]
        return one_outcome(lambda: self.judge(first.task, first.texts))


def judge_all(scorer: Scorer, asked: Sequence[Asked]) -> Iterator[Judged]:
    """What comes of judging some groups, in their order."""
    done = 0
    while done < len(asked):
        outcomes = scorer.judge_some(asked[done:])
        yield from outcomes
        done += len(outcomes)


def buildable(
    scorer: Scorer,
    tasks: Sequence[TaskRef],
    unscored: Callable[[int, JudgeRefused], None],
) -> list[str | None]:
    """The prompts of tasks; None where one cannot be built, so that no other is lost with it.

    Args:
        unscored: told the number of each of those, and why.

    Raises:
        JudgeRefused: nothing can be built now.
    """
    try:
        return list(scorer.prompts(tasks))
    except JudgeRefused as refused:
        if refused.reason == UNAVAILABLE:
            raise
    prompts: list[str | None] = []
    for number, task in enumerate(tasks):
        try:
            prompts += scorer.prompts([task])
        except JudgeRefused as refused:
            if refused.reason == UNAVAILABLE:
                raise
            unscored(number, refused)
            prompts.append(None)
    return prompts


def nothing_built(count: int) -> JudgeRefused:
    """What to raise where none of so many tasks could be built."""
    return JudgeRefused(
        UNAVAILABLE, f"none of {counted(count, 'task')} can be built; the log says why"
    )


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
