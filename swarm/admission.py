"""The gate between frames from strangers and the pool. It trusts nothing but a signature.

Frame: size, signature, schema and the manifest's limits, then who signed it. Group: its draw lies
in the schedule and was never met before, its completions are plain answers, and this node's own
judge, given the task rebuilt from the draw, finds the rewards that the author claims. The judge's
time is shared out between authors by :mod:`swarm.verification`.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import NamedTuple

from protocol.announcement import Offer, epoch_of, offer_of
from protocol.errors import ProtocolError
from protocol.frame import OpenFrame, open_frame
from protocol.manifest import ENVIRONMENT, Manifest
from protocol.rollout import Group, encode_group
from swarm import verification
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef, rewarded
from swarm.journal import Journal
from swarm.reputation import PROVEN, Accounts
from swarm.verification import (
    CRASHED,
    TIMEOUT,
    Asked,
    Judge,
    Judged,
    JudgeRefused,
    ScoringQueue,
    Verdict,
    VerificationBudget,
    answer_of,
)

KEPT = 16


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """A group as its author tells it, and why it was not taken.

    Attributes:
        reason: a name of :mod:`swarm.verification`.
        at: unix time at which its frame came, seconds.
        prompt: the question as this node's judge rebuilt it; empty where it was not asked.
        rewards: this node's own verdict; empty where there is none.
    """

    author: bytes
    group: Group
    reason: str
    at: float
    prompt: str = ""
    rewards: tuple[float, ...] = ()


class RefusedGroups:
    """Holds the newest until somebody takes them; written and read by several threads."""

    def __init__(self) -> None:
        self._kept: deque[RefusedGroup] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, groups: Iterable[RefusedGroup]) -> None:
        """Keep these, and let go of as many old ones."""
        with self._lock:
            self._kept.extend(groups)

    def take(self) -> list[RefusedGroup]:
        """What is kept, the oldest first; each is handed out once."""
        with self._lock:
            taken = list(self._kept)
            self._kept.clear()
        return taken


class Told(NamedTuple):
    """A group as its author tells it, and the bytes that it is on the wire."""

    group: Group
    plain: bytes


@dataclass(slots=True)
class Findings:
    """What came of one frame so far.

    Attributes:
        author: who answers for the frame.
        opened: the frame, once that went well.
        now: unix time at which it was begun with, seconds.
        pending: groups that wait for their verdict.
        proven: whether the author had standing when the frame came.
        seconds: of verification that it took.
        admitted: groups that passed.
        refused: refusals by reason.
        shown: those of the refused that could be read.
        stalls: groups that hung or killed the verifier.
    """

    author: bytes
    proven: bool = False
    opened: OpenFrame | None = None
    pending: list[Told] = field(default_factory=list)
    now: float = 0.0
    seconds: float = 0.0
    admitted: list[PooledGroup] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    shown: list[RefusedGroup] = field(default_factory=list)
    stalls: int = 0

    def refuse(self, reason: str, group: Group, verdict: Verdict | None = None) -> None:
        """Note that a group is refused, and what was found of it."""
        self.refused[reason] += 1
        found = (verdict.prompt, verdict.rewards) if verdict else ()
        self.shown.append(RefusedGroup(self.author, group, reason, self.now, *found))


log = logging.getLogger(__name__)

REWARD_TOLERANCE = 1e-3
# Groups of one frame that may hang or kill the verifier before the rest of it is given up: what an
# author can cost us is bounded by seconds a frame, not by seconds a group.
MAX_STALLS = 2
# Epochs that an honest author's clock may be ahead of ours.
AHEAD_EPOCHS = 1
Opener = Callable[[bytes, bytes, Manifest], OpenFrame]
_SEEN = "SELECT digest FROM seen WHERE author=? AND epoch=? AND number=?"


def oldest_epoch(manifest: Manifest, now: float) -> int:
    """Groups of epochs before it are too old to be admitted at unix time ``now`` or later."""
    return epoch_of(now, manifest.epoch_seconds) - manifest.max_age_epochs - AHEAD_EPOCHS


class Admission:
    """Turns frames into groups with rewards of our own, and keeps the authors' accounts.

    Whatever is wrong with a frame or a group is a refusal: counted as ``refused{reason=…}``, put
    into the author's account, and a strike where :mod:`swarm.verification` says so.

    Args:
        threaded: whether :meth:`admit` works on another thread; a simulation, whose clock waits
            for none, keeps to its own.
        opener: :func:`protocol.frame.open_frame`, or what remembers its results for many nodes.
        shown: keeps groups that were refused, for people to look at.
    """

    def __init__(
        self,
        manifest: Manifest,
        swarm_id: bytes,
        judge: Judge,
        accounts: Accounts,
        journal: Journal,
        clock: Clock,
        counters: Counters,
        *,
        threaded: bool = True,
        opener: Opener = open_frame,
        shown: RefusedGroups | None = None,
    ) -> None:
        self._manifest = manifest
        self._swarm_id = swarm_id
        self._judge = judge
        self._accounts = accounts
        self._journal = journal
        self._clock = clock
        self._counters = counters
        self._threaded = threaded
        # A simulation's verdicts take no time on its clock, so none is charged.
        self._timer: Callable[[], float] = time.monotonic if threaded else clock.time
        self._budget = VerificationBudget(manifest.epoch_seconds)
        self._turns = ScoringQueue(self._budget)
        self._opener = opener
        self._shown = shown or RefusedGroups()
        # A rebuilt journal may have forgotten what was used of any epoch that had begun.
        restored = journal.restored_at
        self._first_epoch = (
            0 if restored is None else epoch_of(restored, manifest.epoch_seconds) + AHEAD_EPOCHS + 1
        )

    async def admit(
        self, frame: bytes, expected_author: bytes, offer: Offer | None = None
    ) -> list[PooledGroup]:
        """The groups of a frame that may be learned from.

        Unless told otherwise the work is done on another thread; the event loop goes on. Between
        two requests others may have their turn (:mod:`swarm.verification`).

        Args:
            frame: any bytes.
            expected_author: who announced them, under their SHA-256, with his signature; he
                answers for whatever they are.
            offer: what he announced of them; left out, nothing.

        Raises:
            JournalError: this node's own storage failed.
        """
        if not self._threaded:
            return self.examine(frame, expected_author, offer)
        findings = await asyncio.to_thread(self._begin, frame, expected_author, offer)
        while findings.pending:
            async with self._turns.turn(expected_author, proven=findings.proven):
                await asyncio.to_thread(self._look, findings)
        await asyncio.to_thread(self._settle, findings)
        return findings.admitted

    def examine(
        self, frame: bytes, expected_author: bytes, offer: Offer | None = None
    ) -> list[PooledGroup]:
        """:meth:`admit`, on the caller's thread and without a break."""
        findings = self._begin(frame, expected_author, offer)
        while findings.pending:
            self._look(findings)
        self._settle(findings)
        return findings.admitted

    def _begin(self, frame: bytes, author: bytes, offer: Offer | None) -> Findings:
        """Everything that can be found without a judge."""
        findings = Findings(author, now=self._clock.time())
        findings.opened = self._open(frame, author, offer, findings)
        if findings.opened:
            findings.proven = self._accounts.standing(author) >= PROVEN
            timely = []
            for group in findings.opened.batch.groups:
                fault = self._fault(group, findings.now)
                if fault:
                    findings.refuse(fault, group)
                else:
                    timely.append(group)
            findings.pending = self._unseen(author, timely, findings.now, findings)
        return findings

    def _look(self, findings: Findings) -> None:
        """Judge the next groups, if their frame and their author may still cost anything."""
        if findings.stalls == MAX_STALLS:
            findings.refused[verification.ABANDONED] += len(findings.pending)
            findings.pending = []
            return
        self._budget.begin(epoch_of(self._clock.time(), self._manifest.epoch_seconds))
        left = self._budget.left(findings.author, findings.seconds, proven=findings.proven)
        if not left:
            findings.refuse(verification.OVER_BUDGET, findings.pending[0].group)
            findings.pending = findings.pending[1:]
            return
        outcomes = self._outcomes(findings, left)
        judged, findings.pending = (
            findings.pending[: len(outcomes)],
            findings.pending[len(outcomes) :],
        )
        for told, found in zip(judged, outcomes, strict=True):
            if isinstance(found, JudgeRefused):
                findings.refuse(found.reason, told.group)
                findings.stalls += found.reason in (TIMEOUT, CRASHED)
            elif fault := _disagreement(told.group, found):
                findings.refuse(fault, told.group, found)
            elif findings.opened:
                findings.admitted.append(_pooled(findings.opened, told, found, findings.now))

    def _settle(self, findings: Findings) -> None:
        """Put what came of a frame into the books."""
        author = findings.author
        for reason, n in findings.refused.items():
            self._counters.add("refused", n, reason=reason)
            self._accounts.refuse(author, reason, n)
            log.info("refused %d of %s: %s", n, author.hex()[:16], reason)
        self._shown.add(findings.shown)
        if findings.seconds:
            self._accounts.charge(author, findings.seconds)
        if findings.admitted:
            self._counters.add("admitted", len(findings.admitted))
            self._accounts.admit(author, len(findings.admitted))

    def _open(
        self, frame: bytes, expected: bytes, offer: Offer | None, findings: Findings
    ) -> OpenFrame | None:
        if self._accounts.banned(expected):
            findings.refused[verification.BANNED] += 1
            return None
        try:
            opened = self._opener(frame, self._swarm_id, self._manifest)
        except ProtocolError as error:
            findings.refused[error.code] += 1
            return None
        if opened.author != expected:
            findings.refused[verification.WRONG_AUTHOR] += 1
            return None
        if offer and offer_of(frame, opened.batch, self._manifest) != offer:
            findings.refused[verification.OFFER_MISMATCH] += 1
            return None
        return opened

    def _fault(self, group: Group, now: float) -> str | None:
        """What can be said against a group without its history and its task."""
        epoch = epoch_of(now, self._manifest.epoch_seconds)
        if group.epoch > epoch + AHEAD_EPOCHS:
            return verification.EPOCH_AHEAD
        if group.epoch < epoch - self._manifest.max_age_epochs:
            return verification.STALE_EPOCH
        if group.epoch < self._first_epoch:
            return verification.BEFORE_RESTORE
        played = self._played(group)
        for completion in group.completions:
            if not completion.alternates or (len(completion.segments) > 1 and not played):
                return verification.UNEXPECTED_SEGMENTS
        return None

    def _played(self, group: Group) -> bool:
        return self._manifest.env(group.env).source == ENVIRONMENT

    def _unseen(
        self, author: bytes, groups: list[Group], now: float, findings: Findings
    ) -> list[Told]:
        """The groups whose draws are met for the first time; they count as met from here on.

        The note is made before the verdict, so that a crash loses a group rather than admits it
        twice, and a refused draw does not come back with better answers.
        """
        unseen = []
        with self._journal.transaction() as connection:
            for group in groups:
                draw = (author, group.epoch, group.index)
                plain = encode_group(group)
                digest = sha256(plain).digest()[:16]
                known = connection.execute(_SEEN, draw).fetchone()
                if known is None:
                    connection.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", (*draw, digest))
                    unseen.append(Told(group, plain))
                elif known[0] == digest:
                    findings.refused[verification.REPLAY] += 1
                else:
                    findings.refuse(verification.EQUIVOCATION, group)
            oldest = oldest_epoch(self._manifest, now)
            connection.execute("DELETE FROM seen WHERE epoch<?", (oldest,))
        return unseen

    def _outcomes(self, findings: Findings, left: float) -> Sequence[Judged]:
        """What comes of the next groups within ``left`` seconds, which are charged."""
        author = findings.author
        asked = [
            Asked(
                TaskRef.shared(author, group.env, group.level, group.epoch, group.index),
                [answer_of(each, played=self._played(group)) for each in group.completions],
            )
            for group, _ in findings.pending
        ]
        began = self._timer()
        try:
            outcomes = self._judge.judge_some(asked, seconds=left)
        except Exception:
            # A bug of ours must not cost us the other groups.
            log.exception("the judge failed on a group of %s", asked[0].task.env)
            outcomes = [JudgeRefused(verification.JUDGE_FAILED)]
        told = [found.seconds for found in outcomes if found.seconds is not None]
        seconds = sum(told) if len(told) == len(outcomes) else self._timer() - began
        findings.seconds += seconds
        self._budget.charge(author, seconds, proven=findings.proven)
        return outcomes


def _pooled(opened: OpenFrame, told: Told, verdict: Verdict, now: float) -> PooledGroup:
    return PooledGroup(
        author=opened.author,
        told=told.plain,
        group=rewarded(told.group, verdict.rewards),
        prompt=verdict.prompt,
        encoding=opened.batch.encoding,
        policy_step=opened.batch.policy_step,
        received=now,
    )


def _disagreement(group: Group, verdict: Verdict) -> str | None:
    """What is wrong with our verdict, or with the rewards that an author claims beside it."""
    own = verdict.rewards
    if len(own) != len(group.rewards) or not all(0.0 <= reward <= 1.0 for reward in own):
        log.error("the judge gave %s to a group of %s", own, group.env)
        return verification.BAD_VERDICT
    # A claim that is not a number agrees with nothing.
    agree = all(abs(c - o) <= REWARD_TOLERANCE for c, o in zip(group.rewards, own, strict=True))
    return None if agree else verification.REWARD_MISMATCH
