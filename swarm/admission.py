"""Admission of peers' frames to the replay buffer; trusts only a signature.

Checks the frame's size, signature, schema, limits and author, then each group's time slot, sample
index and segments. Finally this node's own verifier must compute the claimed rewards.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from hashlib import sha256

from protocol.announcement import Offer, epoch_of, offer_of
from protocol.errors import ProtocolError
from protocol.frame import OpenFrame, open_frame, without_tokens
from protocol.manifest import ENVIRONMENT, Manifest
from protocol.rollout import Batch, EncodedGroup, Group
from swarm import verification
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.groups import PooledGroup, TaskRef, rewarded
from swarm.journal import CLOCK_ERROR, Journal
from swarm.pool import forgotten_epoch, note_forgotten
from swarm.reputation import PROVEN, Accounts
from swarm.verification import Scores, VerifierError

log = logging.getLogger(__name__)

KEPT = 16  # refused groups
MAX_SEEN = 1 << 18  # samples remembered, some 30 MB, however old a manifest lets groups be
LEAST_SEEN = 1 << 14  # latest samples always remembered, or a clock jump would forget all
REWARD_TOLERANCE = 1e-3
MOST_UNPROVEN = 64  # groups of a frame that are looked at before its author is proven
MOST_ASKED = 32  # groups passed to the verifier at a time
MAX_STALLS = 2  # groups that hang or kill the verifier before the rest of a frame is abandoned
AHEAD_EPOCHS = 1  # time slots by which an honest author's clock may be ahead of this node's
Opener = Callable[[bytes, bytes, Manifest], OpenFrame]
_SURPLUS = "SELECT epoch FROM seen ORDER BY epoch DESC LIMIT 1 OFFSET ?"
_SEEN = "SELECT digest FROM seen WHERE author=? AND epoch=? AND number=?"


@dataclass(frozen=True, slots=True)
class RefusedGroup:
    """A group as its author encoded it, without tokens, and why it was refused."""

    author: bytes
    group: Group
    reason: str  # a name of :mod:`swarm.verification`
    at: float  # Unix time at which its frame came, seconds
    prompt: str = ""  # with ``rewards`` this node's own verification result, or empty
    rewards: tuple[float, ...] = ()


class RefusedGroups:
    """The newest refused groups until they are taken; safe for several threads."""

    def __init__(self) -> None:
        self._kept: deque[RefusedGroup] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    def add(self, groups: Iterable[RefusedGroup]) -> None:
        """Keep these and drop as many old ones."""
        with self._lock:
            self._kept.extend(groups)

    def take(self) -> list[RefusedGroup]:
        """Return what is kept, oldest first; each group is returned once."""
        with self._lock:
            groups = list(self._kept)
            self._kept.clear()
        return groups


@dataclass(slots=True)
class AdmissionResult:
    """The admission result of one frame so far."""

    author: bytes  # accountable for the frame
    proven: bool = False  # whether the author was proven when the frame came
    batch: Batch | None = None  # the frame's, if it could be opened
    pending: list[EncodedGroup] = field(default_factory=list)  # groups that wait for verification
    now: float = 0.0  # Unix time at which processing began, seconds
    seconds: float = 0.0  # verification time spent
    admitted: list[PooledGroup] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    shown: list[RefusedGroup] = field(default_factory=list)  # refused groups that could be decoded
    stalls: int = 0  # groups that hung or killed the verifier

    def refuse(self, reason: str, group: Group, scores: Scores | None = None) -> None:
        self.refused[reason] += 1
        outcome = (scores.prompt, scores.rewards) if scores else ()
        self.shown.append(
            RefusedGroup(self.author, without_tokens(group), reason, self.now, *outcome)
        )


def oldest_epoch(manifest: Manifest, now: float) -> int:
    """Return the time slot before which groups are too old from Unix time ``now`` on."""
    return epoch_of(now, manifest.epoch_seconds) - manifest.max_age_epochs - AHEAD_EPOCHS


@dataclass(eq=False, repr=False)
class Admission:
    """Turns frames into groups with this node's own rewards, and updates accounts.

    A refusal is counted as ``refused{reason=…}`` and recorded in the author's account, with its
    penalty in :mod:`swarm.verification`. ``threaded`` lets :meth:`admit` work on another thread; a
    simulation uses its own, because its clock waits for no other. ``opener`` may cache results for
    many nodes. ``shown`` keeps refused groups for people to inspect.
    """

    _manifest: Manifest
    _swarm_id: bytes
    _verifier: verification.GroupVerifier
    _accounts: Accounts
    _journal: Journal
    _clock: Clock
    _counters: Counters
    _: KW_ONLY
    threaded: bool = True
    opener: Opener = open_frame
    shown: RefusedGroups = field(default_factory=RefusedGroups)

    def __post_init__(self) -> None:
        manifest = self._manifest
        # In a simulation verification takes no time on its clock, so none is charged.
        self._timer: Callable[[], float] = time.monotonic if self.threaded else self._clock.time
        self._budget = verification.VerificationBudget(manifest.epoch_seconds)
        self._turns = verification.ScoringQueue(self._budget)
        # A rebuilt journal may lack what was used in time slots that had begun by then.
        self._first_epoch = 0
        if (restored_at := self._journal.restored_at) is not None:
            self._first_epoch = epoch_of(restored_at, manifest.epoch_seconds) + AHEAD_EPOCHS + 1

    async def admit(
        self, frame: bytes, expected_author: bytes, offer: Offer | None = None
    ) -> list[PooledGroup]:
        """Return the groups of a frame that may be used for training.

        Between two requests, other frames may have their turn (:mod:`swarm.verification`).
        ``expected_author`` announced the frame in ``offer`` (None skips the comparison) and is
        accountable for it. Raises ``JournalError`` if this node's own storage fails.
        """
        if not self.threaded:
            return self.examine(frame, expected_author, offer)
        result = await asyncio.to_thread(self._check_frame, frame, expected_author, offer)
        while result.pending:
            async with self._turns.turn(expected_author, proven=result.proven):
                await asyncio.to_thread(self._verify_next, result)
        await asyncio.to_thread(self._record, result)
        return result.admitted

    def examine(
        self, frame: bytes, expected_author: bytes, offer: Offer | None = None
    ) -> list[PooledGroup]:
        """Do the same as :meth:`admit`, on the caller's thread without interruption."""
        result = self._check_frame(frame, expected_author, offer)
        while result.pending:
            self._verify_next(result)
        self._record(result)
        return result.admitted

    def _check_frame(self, frame: bytes, author: bytes, offer: Offer | None) -> AdmissionResult:
        result = AdmissionResult(author, now=self._clock.time())
        outcome = self._open(frame, author, offer)
        if isinstance(outcome, str):
            result.refused[outcome] += 1
            return result
        result.batch = outcome.batch
        result.proven = self._accounts.reputation(author) >= PROVEN
        groups = []
        for group in outcome.batch.groups:
            if reason := self._untimely(group, result.now):
                result.refuse(reason, group)
            else:
                groups.append(group)
        if not result.proven and (surplus := len(groups) - MOST_UNPROVEN) > 0:
            result.refused[verification.OVER_BUDGET] += surplus
            del groups[MOST_UNPROVEN:]
        for encoded in self._unseen(groups, result):
            if self._alternates(encoded.group):
                result.pending.append(encoded)
            else:
                result.refuse(verification.UNEXPECTED_SEGMENTS, encoded.group)
        return result

    def _verify_next(self, result: AdmissionResult) -> None:
        if result.stalls >= MAX_STALLS:
            result.refused[verification.ABANDONED] += len(result.pending)
            result.pending = []
            return
        self._budget.begin(epoch_of(self._clock.time(), self._manifest.epoch_seconds))
        seconds = self._budget.left(result.author, result.seconds, proven=result.proven)
        if not seconds:
            result.refuse(verification.OVER_BUDGET, result.pending[0].group)
            result.pending = result.pending[1:]
            return
        outcomes = self._outcomes(result, seconds)
        claims = result.pending[: len(outcomes)]
        result.pending = result.pending[len(outcomes) :]
        for claim, outcome in zip(claims, outcomes, strict=True):
            if isinstance(outcome, VerifierError):
                result.refuse(outcome.reason, claim.group)
                result.stalls += outcome.reason in verification.STALLS
            elif reason := _disagreement(claim.group, outcome):
                result.refuse(reason, claim.group, outcome)
            else:
                result.admitted.append(_pooled(result, claim, outcome))

    def _record(self, result: AdmissionResult) -> None:
        author = result.author
        for reason, n in result.refused.items():
            self._counters.add("refused", n, reason=reason)
            self._accounts.refuse(author, reason, n)
            log.info("refused %d of %s: %s", n, author.hex()[:16], reason)
        self.shown.add(result.shown)
        if result.seconds:
            self._accounts.charge(author, result.seconds)
        if result.admitted:
            self._counters.add("admitted", len(result.admitted))
            self._accounts.admit(author, len(result.admitted))

    def _open(self, frame: bytes, author: bytes, offer: Offer | None) -> OpenFrame | str:
        """Open a frame, or return the reason for which it is refused."""
        if self._accounts.banned(author):
            return verification.BANNED
        try:
            contents = self.opener(frame, self._swarm_id, self._manifest)
        except ProtocolError as error:
            return error.code
        if contents.author != author:
            return verification.WRONG_AUTHOR
        if offer and offer_of(frame, contents.batch, self._manifest) != offer:
            return verification.OFFER_MISMATCH
        return contents

    def _untimely(self, group: Group, now: float) -> str | None:
        epoch = epoch_of(now, self._manifest.epoch_seconds)
        if group.epoch > epoch + AHEAD_EPOCHS:
            return verification.EPOCH_AHEAD
        if group.epoch < epoch - self._manifest.max_age_epochs:
            return verification.STALE_EPOCH
        slots = self._first_epoch - epoch
        if group.epoch < self._first_epoch and slots * self._manifest.epoch_seconds < CLOCK_ERROR:
            return verification.BEFORE_RESTORE
        return None

    def _alternates(self, group: Group) -> bool:
        """Return whether policy and environment take turns; without one there is one segment."""
        interactive = self._played(group)
        return all(
            c.alternates and (interactive or len(c.segments) == 1) for c in group.completions
        )

    def _played(self, group: Group) -> bool:
        return self._manifest.env(group.env).source == ENVIRONMENT

    def _unseen(self, groups: list[Group], result: AdmissionResult) -> list[EncodedGroup]:
        """Return groups with new sample indexes, noted as seen before verification.

        So a crash loses a group but never admits it twice, and a refused sample cannot come back.
        Samples that are too old are forgotten, except for the ``LEAST_SEEN`` latest. Beyond
        ``MAX_SEEN`` samples the oldest time slots are forgotten, and admitted no more.
        """
        new_groups = []
        with self._journal.transaction() as connection:
            cutoff_epoch = forgotten_epoch(connection)
            for group in groups:
                if group.epoch <= cutoff_epoch:
                    result.refuse(verification.STALE_EPOCH, group)
                    continue
                sample = (result.author, group.epoch, group.index)
                encoded = EncodedGroup.of(group)
                digest = sha256(encoded.plain).digest()[:16]
                row = connection.execute(_SEEN, sample).fetchone()
                if row is None:
                    connection.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", (*sample, digest))
                    new_groups.append(encoded)
                elif row[0] == digest:
                    result.refused[verification.REPLAY] += 1
                else:
                    result.refuse(verification.EQUIVOCATION, group)
            self._forget_seen(connection, result.now)
        return new_groups

    def _forget_seen(self, connection: sqlite3.Connection, now: float) -> None:
        row = connection.execute(_SURPLUS, (LEAST_SEEN,)).fetchone()
        oldest = min(row[0], oldest_epoch(self._manifest, now)) if row else 0
        for (epoch,) in connection.execute(_SURPLUS, (MAX_SEEN,)).fetchall():
            note_forgotten(connection, epoch)
            oldest = max(oldest, epoch + 1)
        connection.execute("DELETE FROM seen WHERE epoch<?", (oldest,))

    def _outcomes(self, result: AdmissionResult, limit: float) -> Sequence[verification.Scored]:
        author, start = result.author, self._timer()
        requests = [
            verification.Submission(
                TaskRef.shared(author, group.env, group.level, group.epoch, group.index),
                [
                    verification.answer_of(completion, played=self._played(group))
                    for completion in group.completions
                ],
            )
            for group in (encoded.group for encoded in result.pending[:MOST_ASKED])
        ]
        build_time = self._timer() - start
        try:
            outcomes = self._verifier.verify_some(requests, seconds=limit)
        except Exception:
            # A bug in this node's verifier must not lose the other groups.
            log.exception("the verifier failed on a group of %s", requests[0].task.env)
            outcomes = [VerifierError(verification.VERIFIER_FAILED)]
        # The author pays for decoding or scoring, whichever took longer. Elapsed time may include
        # the start of a worker, so it counts only if the verifier did not measure every group.
        durations = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
        complete = len(durations) == len(outcomes)
        seconds = max(build_time, sum(durations)) if complete else self._timer() - start
        result.seconds += seconds
        self._budget.charge(author, seconds, proven=result.proven)
        return outcomes


def _pooled(result: AdmissionResult, claim: EncodedGroup, scores: Scores) -> PooledGroup:
    assert result.batch, "its groups come from an opened frame"
    return PooledGroup(
        author=result.author,
        encoded=claim.plain,
        group=rewarded(claim.group, scores.rewards),
        prompt=scores.prompt,
        encoding=result.batch.encoding,
        policy_step=result.batch.policy_step,
        received=result.now,
    )


def _disagreement(group: Group, scores: Scores) -> str | None:
    own = scores.rewards
    if len(own) != len(group.rewards) or not all(0.0 <= reward <= 1.0 for reward in own):
        log.error("the verifier gave %s to a group of %s", own, group.env)
        return verification.BAD_RESULT
    # A claim of NaN agrees with nothing.
    claims = enumerate(zip(group.rewards, own, strict=True))
    mismatches = {n for n, (claim, own) in claims if not abs(claim - own) <= REWARD_TOLERANCE}
    if not mismatches:
        return None
    # A faster machine may score in time what this one does not.
    if mismatches.issubset(scores.over):
        return verification.CPU_LIMIT
    first = min(mismatches)
    detail = f"{group.rewards[first]:g} instead of {own[first]:g}"
    log.info("a wrong reward of %s level %d: %s", group.env, group.level, detail)
    return verification.REWARD_MISMATCH
