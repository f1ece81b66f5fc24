"""How much time judging strangers' texts may take, and whose turn it is.

Let T be half an epoch. At the default shares of a quarter

- a frame gets T / 8 (3.75 s of an epoch of a minute), and so does any single request;
- an author gets T / 4 an epoch, over all its frames;
- all newcomers together get T / 4 an epoch, however many keys they are, and the one that has cost
  least comes first.

All proven authors together have no bound but their number: eight that are slow to judge take all of
an epoch.

Proven authors (:mod:`swarm.reputation`) go before newcomers, and of two the one whose verdicts took
less time this epoch. A frame gives way after every request: one group, or as many as the judge gets
done in a moment (:meth:`Judge.judge_some`). So a proven author that costs little waits
for one request at most. Time counts against its author however a verdict ends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol

from protocol.rollout import Completion, Finish
from swarm.groups import TaskRef

USED = 0.5
"""Share of an epoch that T is."""
FRAME_PARTS = 8
"""A frame's bound is T by this."""
LEAST_SECONDS = 0.5
"""What must be left for a request to begin: an honest one takes far less, and none is cut short
without need."""
AUTHOR_SHARE = 0.25
NEWCOMER_SHARE = 0.25


_Waiter = tuple[int, bytes, bool, asyncio.Future[None]]


class VerificationBudget:
    """Seconds of verification by author in the running epoch; a pure state machine.

    Args:
        epoch_seconds: length of an epoch.
    """

    def __init__(self, epoch_seconds: float) -> None:
        self._whole = USED * epoch_seconds
        self._epoch = -1
        self._spent: defaultdict[bytes, float] = defaultdict(float)
        self._newcomers = 0.0

    @property
    def frame_seconds(self) -> float:
        """Most that one frame, or one request, may take."""
        return max(2 * LEAST_SECONDS, self._whole / FRAME_PARTS)

    def left(self, author: bytes, frame: float, *, proven: bool) -> float:
        """Seconds that the next request of ``author`` may take; 0 where it may not begin.

        Args:
            frame: seconds that its frame has taken.
            proven: whether the author has standing.
        """
        left = min(
            self.frame_seconds - frame,
            max(2 * LEAST_SECONDS, AUTHOR_SHARE * self._whole) - self.spent(author),
        )
        if not proven:
            most = max(2 * LEAST_SECONDS, NEWCOMER_SHARE * self._whole)
            left = min(left, most - self._newcomers)
        return left if left >= LEAST_SECONDS else 0.0

    def spent(self, author: bytes) -> float:
        """Seconds charged to the author in this epoch."""
        return self._spent.get(author, 0.0)

    def charge(self, author: bytes, seconds: float, *, proven: bool) -> None:
        """Note what a verdict took, whatever came of it."""
        self._spent[author] += seconds
        if not proven:
            self._newcomers += seconds

    def begin(self, epoch: int) -> None:
        """Start anew where ``epoch`` is another than before."""
        if epoch != self._epoch:
            self._epoch, self._newcomers = epoch, 0.0
            self._spent.clear()


class ScoringQueue:
    """One request at a time; who waits is served by standing and by what they have cost."""

    def __init__(self, budget: VerificationBudget) -> None:
        self._budget = budget
        self._order = count()
        self._waiting: list[_Waiter] = []
        self._busy = False

    @asynccontextmanager
    async def turn(self, author: bytes, *, proven: bool) -> AsyncIterator[None]:
        """Hold the judge for one request of ``author``."""
        if self._busy or self._waiting:
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (next(self._order), author, proven, mine)
            self._waiting.append(entry)
            try:
                await mine
            except asyncio.CancelledError:
                if entry in self._waiting:
                    self._waiting.remove(entry)
                else:
                    self._release()
                raise
        self._busy = True
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        """Hand the judge on in a moment: who had it may want it again for the same frame."""
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            entry = min(self._waiting, key=self._rank)
            self._waiting.remove(entry)
            entry[-1].set_result(None)

    def _rank(self, entry: _Waiter) -> tuple[bool, float, int]:
        order, author, proven, _ = entry
        return not proven, self._budget.spent(author), order


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


WRONG_AUTHOR = "wrong_author"
EQUIVOCATION = "equivocation"
REWARD_MISMATCH = "reward_mismatch"
UNEXPECTED_SEGMENTS = "unexpected_segments"
BANNED = "banned"
STALE_EPOCH = "stale_epoch"
EPOCH_AHEAD = "epoch_ahead"
BEFORE_RESTORE = "before_restore"
REPLAY = "replay"
ABANDONED = "abandoned"
OVER_BUDGET = "over_budget"
OFFER_MISMATCH = "offer_mismatch"
BAD_VERDICT = "bad_verdict"
JUDGE_FAILED = "judge_failed"

# Bars the author at once; see swarm.reputation.BAR_AT.
_FORGED = 5.0
_WRONG = 1.0
# A loaded machine makes honest texts slow now and then, but not ten of one author in an hour.
_SLOW = 0.5
_NO_FAULT = 0.0

STRIKES: Mapping[str, float] = {
    # Forgery: somebody's name under what he did not sign.
    "bad_signature": _FORGED,
    "bad_key": _FORGED,
    WRONG_AUTHOR: _FORGED,
    # Lies: another reward than the verifier gives, another observation than the environment does;
    # one draw told in two ways. A node that lost its journal without a backup can do the last once
    # by honest mistake.
    REWARD_MISMATCH: _WRONG,
    NOT_REPLAYED: _WRONG,
    EQUIVOCATION: _WRONG,
    # An offer that says other things of its frame than the frame does.
    OFFER_MISMATCH: _WRONG,
    # Malformed: not what the protocol or the manifest, which every member has, allows.
    "protocol_error": _WRONG,
    "bad_magic": _WRONG,
    "truncated": _WRONG,
    "trailing_bytes": _WRONG,
    "too_large": _WRONG,
    "too_deep": _WRONG,
    "too_many_items": _WRONG,
    "duplicate_key": _WRONG,
    "bad_encoding": _WRONG,
    "bad_compression": _WRONG,
    "bad_schema": _WRONG,
    "wrong_swarm": _WRONG,
    "wrong_shard": _WRONG,
    UNEXPECTED_SEGMENTS: _WRONG,
    # Served over a stream that only the author's key can open: not the frame he announced.
    "wrong_content": _WRONG,
    "response_too_large": _WRONG,
    # Texts that hang or kill the verifier.
    "timeout": _SLOW,
    "crashed": _SLOW,
    # Time: a slow author or line, a clock that is off (his or ours), a frame met twice.
    "too_slow": _NO_FAULT,
    STALE_EPOCH: _NO_FAULT,
    EPOCH_AHEAD: _NO_FAULT,
    BEFORE_RESTORE: _NO_FAULT,
    REPLAY: _NO_FAULT,
    "expired": _NO_FAULT,
    "bad_lifetime": _NO_FAULT,
    # Policy of the swarm or of this node.
    "not_admitted": _NO_FAULT,
    BANNED: _NO_FAULT,
    # This node's limits: what it does not know, dares not run, or failed at.
    "unknown_env": _NO_FAULT,
    "evaluates_text": _NO_FAULT,
    "not_replayable": _NO_FAULT,
    "unavailable": _NO_FAULT,
    ABANDONED: _NO_FAULT,
    OVER_BUDGET: _NO_FAULT,
    BAD_VERDICT: _NO_FAULT,
    JUDGE_FAILED: _NO_FAULT,
}


def strike_weight(reason: str) -> float:
    """Strikes for one refusal; a reason that the table does not know costs nothing."""
    return STRIKES.get(reason, _NO_FAULT)
