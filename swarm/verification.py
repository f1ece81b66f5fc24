"""Verification of peers' groups: time budget, order, the verifier's interface, penalties.

Let T be half a time slot. At the default shares of a quarter

- a frame gets T / 8 (3.75 s in a time slot of a minute), and so does any single request;
- an author gets T / 4 per time slot, over all its frames;
- all unproven authors together get T / 4 per time slot, independent of their number. Half of it
  is for those that have used less than half a second of it.

Proven authors together are limited only by their number: eight slow ones take a whole time slot.

Proven authors (:mod:`swarm.reputation`) go before unproven ones, then the author with less
verification time in this slot. A frame yields after every request: one group, or as many as the
verifier finishes in a moment (:meth:`GroupVerifier.verify_some`). So a proven author of low cost
waits for one request at most. Time counts against its author independent of the result.
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

USED = 0.5  # T as a share of a time slot
FRAME_PARTS = 8  # a frame's limit is T divided by this
LEAST_SECONDS = 0.5  # minimum left to start a request, so that honest ones are not interrupted
AUTHOR_SHARE = 0.25
UNPROVEN_SHARE = 0.25


_Waiter = tuple[int, bytes, bool, asyncio.Future[None]]


class VerificationBudget:
    """Verification seconds by author in the current time slot; a pure state machine."""

    def __init__(self, epoch_seconds: float) -> None:
        self._whole = USED * epoch_seconds
        self._epoch = -1
        self._spent: defaultdict[bytes, float] = defaultdict(float)
        self._unproven = 0.0

    @property
    def frame_seconds(self) -> float:
        """Maximum seconds for one frame, or one request."""
        return self._part(1 / FRAME_PARTS)

    def left(self, author: bytes, frame: float, *, proven: bool) -> float:
        """Return seconds for the next request, 0 if none, after ``frame`` seconds of its frame."""
        left = min(self.frame_seconds - frame, self._part(AUTHOR_SHARE) - self.spent(author))
        if not proven:
            free = self._part(UNPROVEN_SHARE) - self._unproven
            for_all = self._part(UNPROVEN_SHARE / 2) - self._unproven
            is_new = self.spent(author) < LEAST_SECONDS
            left = min(left, max(for_all, min(free, LEAST_SECONDS)) if is_new else for_all)
        return left if left >= LEAST_SECONDS else 0.0

    def _part(self, share: float) -> float:
        """Return a share of T, but enough to start a request however short the time slot."""
        return max(2 * LEAST_SECONDS, share * self._whole)

    def spent(self, author: bytes) -> float:
        return self._spent.get(author, 0.0)

    def charge(self, author: bytes, seconds: float, *, proven: bool) -> None:
        """Charge the time of a verification, independent of its result."""
        self._spent[author] += seconds
        if not proven:
            self._unproven += seconds

    def begin(self, epoch: int) -> None:
        """Reset everything if ``epoch`` differs from the last one."""
        if epoch != self._epoch:
            self._epoch, self._unproven = epoch, 0.0
            self._spent.clear()


class ScoringQueue:
    """One request at a time, ordered by proven status and time charged."""

    def __init__(self, budget: VerificationBudget) -> None:
        self._budget = budget
        self._order = count()
        self._waiting: list[_Waiter] = []
        self._busy = False

    @asynccontextmanager
    async def turn(self, author: bytes, *, proven: bool) -> AsyncIterator[None]:
        """Hold the verifier for one request of ``author``."""
        if self._busy or self._waiting:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            entry = (next(self._order), author, proven, future)
            self._waiting.append(entry)
            try:
                await future
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
        asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        self._busy = bool(self._waiting)
        if self._waiting:
            entry = min(self._waiting, key=self._rank)
            self._waiting.remove(entry)
            if not entry[-1].done():  # else it was cancelled, and releases the turn
                entry[-1].set_result(None)

    def _rank(self, entry: _Waiter) -> tuple[bool, float, int]:
        order, author, proven, _ = entry
        return not proven, self._budget.spent(author), order


UNKNOWN_ENV = "unknown_env"
EVALUATES_TEXT = "evaluates_text"
TIMEOUT = "timeout"
CPU_LIMIT = "cpu_limit"
CRASHED = "crashed"
WORKER_LOST = "worker_lost"
UNAVAILABLE = "unavailable"
NOT_REPLAYED = "not_replayed"
NOT_REPLAYABLE = "not_replayable"
STALLS = frozenset({TIMEOUT, CPU_LIMIT, CRASHED, WORKER_LOST})  # each costs a worker


@dataclass(frozen=True, slots=True)
class TrajectoryTexts:
    """A trajectory in an environment."""

    texts: tuple[str, ...]  # alternating, the policy's first and last
    truncated: bool  # whether it ended before its environment did


Answer = str | TrajectoryTexts  # the policy's text, or a trajectory
Answers = Sequence[Answer]


def answer_of(completion: Completion, *, played: bool) -> Answer:
    """Convert a completion for the verifier; ``played`` if in an environment."""
    if not played:
        return completion.text
    texts = tuple(segment.text for segment in completion.segments)
    return TrajectoryTexts(texts, completion.finish is Finish.LENGTH)


@dataclass(frozen=True, slots=True)
class Scores:
    """The verification result of one group."""

    prompt: str  # the task's question as this node gives it to a policy, before any chat template
    rewards: tuple[float, ...]  # in [0, 1], one per text, in order
    # Of scoring, without the start of a worker; None if not measured.
    seconds: float | None = field(default=None, compare=False)
    # Indexes of texts beyond their limits, with reward 0; also of slow local texts, with theirs.
    over: tuple[int, ...] = ()


class VerifierError(Exception):
    """A group without a verification result; the group is lost.

    ``reason``, also used in counters, is ``unknown_env`` (no such task family, version or level
    here), ``evaluates_text`` (the verifier executes the texts), ``timeout`` (the time that this
    node had ran out), ``cpu_limit`` (one text took a full limit of CPU time), ``crashed`` (the
    worker died), ``worker_lost`` (the system ended it or had no memory), ``unavailable`` (no worker
    available now), ``not_replayed`` (the rebuilt environment responds differently) or
    ``not_replayable`` (it is not deterministic). ``seconds`` is as in :class:`Scores`.
    """

    def __init__(self, reason: str, detail: str = "", seconds: float | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.seconds = seconds


@dataclass(frozen=True, slots=True)
class Submission:
    """One group to verify, with one text per completion."""

    task: TaskRef
    texts: Answers


Requests = Sequence[Submission]
Scored = Scores | VerifierError  # the outcome of a request


class GroupVerifier(Protocol):
    """A verifier: rebuilds tasks from their references and scores answers to them.

    Several worker threads call it concurrently. Texts come from unknown peers: an implementation
    contains their effects, and returns or raises within bounded time.
    """

    def verify(self, task: TaskRef, texts: Answers, *, seconds: float | None = None) -> Scores:
        """Score the answers of one group within ``seconds``, or raise ``VerifierError``."""

    def verify_some(self, asked: Requests, *, seconds: float | None = None) -> Sequence[Scored]:
        """Return results of the first groups, in order: of one, and more if that is quick.

        It stops after a group that hangs or breaks the verifier, so the caller decides whether to
        continue. By default it verifies only the first group. ``seconds`` is the maximum for all.
        """
        first = asked[0]
        return one_outcome(lambda: self.verify(first.task, first.texts, seconds=seconds))


def one_outcome(verify: Callable[[], Scores]) -> Sequence[Scored]:
    """Return the result or the refusal of one group."""
    try:
        return [verify()]
    except VerifierError as error:
        return [error]


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
BAD_RESULT = "bad_result"
VERIFIER_FAILED = "verifier_failed"

_FORGED = 5.0  # bans the author immediately; see swarm.reputation.BAR_AT
_WRONG = 1.0
_SLOW = 0.5  # honest texts are sometimes slow, but not ten of one author in an hour
_NO_FAULT = 0.0

PENALTIES: Mapping[str, float] = {
    # Forgery: an author's name on data that it did not sign.
    **dict.fromkeys(("bad_signature", "bad_key", WRONG_AUTHOR), _FORGED),
    # False claims: another reward than the verifier's, another observation than the environment's,
    # or two different groups for one task sample. A node that lost its journal without a backup can
    # do the last once by honest mistake.
    **dict.fromkeys((REWARD_MISMATCH, NOT_REPLAYED, EQUIVOCATION), _WRONG),
    OFFER_MISMATCH: _WRONG,  # an offer that does not match its frame
    # Malformed: not allowed by the protocol or by the manifest, which every member has.
    **dict.fromkeys(("protocol_error", "bad_magic", "truncated", "trailing_bytes"), _WRONG),
    **dict.fromkeys(("too_large", "too_deep", "too_many_items", "duplicate_key"), _WRONG),
    **dict.fromkeys(("bad_encoding", "bad_compression", "bad_schema"), _WRONG),
    **dict.fromkeys(("wrong_swarm", "wrong_shard", UNEXPECTED_SEGMENTS), _WRONG),
    # Not the announced frame, served over a stream that only the author's key can open.
    **dict.fromkeys(("wrong_content", "response_too_large"), _WRONG),
    # A text that takes its whole CPU limit, whatever else this machine does, or kills the worker.
    **dict.fromkeys((CPU_LIMIT, CRASHED), _SLOW),
    # Time: a slow author or connection, a wrong clock (the author's or this node's), a replay.
    **dict.fromkeys(("too_slow", STALE_EPOCH, EPOCH_AHEAD, BEFORE_RESTORE), _NO_FAULT),
    **dict.fromkeys((REPLAY, "expired", "bad_lifetime"), _NO_FAULT),
    **dict.fromkeys(("not_admitted", BANNED), _NO_FAULT),  # policy of the swarm or of this node
    # This node's limits: what it does not know, refuses to run, or failed to do.
    **dict.fromkeys((UNKNOWN_ENV, EVALUATES_TEXT, NOT_REPLAYABLE, UNAVAILABLE), _NO_FAULT),
    **dict.fromkeys((TIMEOUT, WORKER_LOST), _NO_FAULT),
    **dict.fromkeys((ABANDONED, OVER_BUDGET, BAD_RESULT, VERIFIER_FAILED), _NO_FAULT),
}


def penalty_weight(reason: str) -> float:
    """Return the penalty for one refusal; 0 for an unknown reason."""
    return PENALTIES.get(reason, _NO_FAULT)
