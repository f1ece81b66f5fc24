"""The seam between admission and whatever can rebuild a task and score answers to it.

Admission lives without tasks, verifiers or worker processes; the node hands it a judge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from protocol.rollout import Completion, Finish
from swarm.task_ref import TaskRef

UNKNOWN_ENV = "unknown_env"
EVALUATES_TEXT = "evaluates_text"
TIMEOUT = "timeout"
CRASHED = "crashed"
UNAVAILABLE = "unavailable"
NOT_REPLAYED = "not_replayed"
NOT_REPLAYABLE = "not_replayable"


@dataclass(frozen=True, slots=True)
class Turns:
    """A trajectory in an environment.

    Attributes:
        texts: by turns, what the policy wrote and what it was answered, the policy first and last.
        cut: whether it was ended before its environment had ended.
    """

    texts: tuple[str, ...]
    cut: bool


Answer = str | Turns
"""A completion as a judge is given it: what the policy wrote, or a trajectory."""


def answer_of(completion: Completion, *, played: bool) -> Answer:
    """What a judge is given of a completion, ``played`` in an environment or not."""
    if not played:
        return completion.text
    texts = tuple(segment.text for segment in completion.segments)
    return Turns(texts, completion.finish is Finish.LENGTH)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge found for one group.

    Attributes:
        prompt: the task's question as this node puts it to a policy, before any chat template.
        rewards: in [0, 1], one for each text, in their order.
        seconds: what scoring took, starting a worker left out; None where nobody looked.
    """

    prompt: str
    rewards: tuple[float, ...]
    seconds: float | None = field(default=None, compare=False)


class JudgeRefused(Exception):  # noqa: N818 - an answer, not a fault
    """The judge gives no verdict on this group, and the group is lost.

    Attributes:
        reason: snake_case name, used in counters: ``unknown_env`` (this node has no such family,
            version or level), ``evaluates_text`` (its verifier executes what it reads),
            ``timeout`` and ``crashed`` (the worker hung or died on one of the texts),
            ``unavailable`` (no worker can be had now), ``not_replayed`` (an environment that is
            rebuilt from the seed answers the policy otherwise), ``not_replayable`` (it never
            answers twice alike).
        seconds: as in :class:`Verdict`.
    """

    def __init__(self, reason: str, detail: str = "", seconds: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Asked:
    """One group to judge.

    Attributes:
        texts: one a completion.
    """

    task: TaskRef
    texts: Sequence[Answer]


Judged = Verdict | JudgeRefused


class Judge(Protocol):
    """Rebuilds tasks from their coordinates and scores answers to them.

    Called from worker threads, by several at once. Texts come from strangers: an implementation
    contains whatever they do, and answers or raises within bounded time.
    """

    def judge(
        self, task: TaskRef, texts: Sequence[Answer], *, seconds: float | None = None
    ) -> Verdict:
        """Score ``texts``, the answers of one group. Blocks.

        Within ``seconds`` where they are given and fewer than the implementation allows itself.

        Raises:
            JudgeRefused: there is no verdict; every other exception is a bug.
        """
        ...

    def judge_some(
        self, asked: Sequence[Asked], *, seconds: float | None = None
    ) -> Sequence[Judged]:
        """Judge the first of some groups: one at the least, more while that takes a moment.

        What hangs or breaks the judge is the last that it judges, so that the caller decides
        whether to go on. Unless an implementation does better, the first group alone.

        Args:
            asked: one group or more.
            seconds: most that all of it may take, as in :meth:`judge`.

        Returns:
            What came of the first groups, in their order.
        """
        first = asked[0]
        return one_outcome(lambda: self.judge(first.task, first.texts, seconds=seconds))


def one_outcome(judged: Callable[[], Verdict]) -> Sequence[Judged]:
    """What came of judging one group."""
    try:
        return [judged()]
    except JudgeRefused as refused:
        return [refused]
