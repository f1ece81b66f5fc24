"""The gate between frames from strangers and the pool. It trusts nothing but a signature.

Frame: size, signature, schema and the manifest's limits, then who signed it. Group: its draw lies
in the schedule and was never met before, its completions are plain answers, and this node's own
judge, given the task rebuilt from the draw, finds the rewards that the author claims.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from hashlib import sha256

from protocol.batch import group_to_wire
from protocol.codec import encode
from protocol.errors import ProtocolError
from protocol.frame import OpenFrame, open_frame
from protocol.keys import epoch_of, task_seed
from protocol.manifest import Manifest
from protocol.rollout import Group, Writer
from swarm import refusals
from swarm.accounts import Accounts
from swarm.clock import Clock
from swarm.counters import Counters
from swarm.journal import Journal
from swarm.judge import CRASHED, TIMEOUT, Judge, JudgeRefused, Verdict
from swarm.pooled_group import PooledGroup

log = logging.getLogger(__name__)

REWARD_TOLERANCE = 1e-3
# Groups of one frame that may hang or kill the verifier before the rest of it is given up: what an
# author can cost us is bounded by seconds a frame, not by seconds a group.
MAX_STALLS = 2
# Epochs that an honest author's clock may be ahead of ours.
AHEAD_EPOCHS = 1
Opener = Callable[[bytes, bytes, Manifest], OpenFrame]
_SEEN = "SELECT digest FROM seen WHERE author=? AND epoch=? AND number=?"


@dataclass(slots=True)
class _Findings:
    """What came of one frame so far."""

    admitted: list[PooledGroup] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    stalls: int = 0


class Admission:
    """Turns frames into groups with rewards of our own, and keeps the authors' accounts.

    Whatever is wrong with a frame or a group is a refusal: counted as ``refused{reason=…}``, put
    into the author's account, and a strike where :mod:`swarm.refusals` says so.

    Args:
        threaded: whether :meth:`admit` works on another thread; a simulation, whose clock waits
            for none, keeps to its own.
        opener: :func:`protocol.frame.open_frame`, or what remembers its results for many nodes.
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
    ) -> None:
        self._manifest = manifest
        self._swarm_id = swarm_id
        self._judge = judge
        self._accounts = accounts
        self._journal = journal
        self._clock = clock
        self._counters = counters
        self._threaded = threaded
        self._opener = opener
        # A rebuilt journal may have forgotten what was used of any epoch that had begun.
        restored = journal.restored_at
        self._first_epoch = (
            0 if restored is None else epoch_of(restored, manifest.epoch_seconds) + AHEAD_EPOCHS + 1
        )

    async def admit(self, frame: bytes, expected_author: bytes) -> list[PooledGroup]:
        """The groups of a frame that may be learned from.

        Unless told otherwise the work is done on another thread; the event loop goes on.

        Args:
            frame: any bytes.
            expected_author: who announced them, under their SHA-256, with his signature; he
                answers for whatever they are.

        Raises:
            JournalError: this node's own storage failed.
        """
        if not self._threaded:
            return self.examine(frame, expected_author)
        return await asyncio.to_thread(self.examine, frame, expected_author)

    def examine(self, frame: bytes, expected_author: bytes) -> list[PooledGroup]:
        """:meth:`admit`, on the caller's thread."""
        findings = _Findings()
        opened = self._open(frame, expected_author, findings)
        if opened:
            self._examine_groups(opened, findings)
        for reason, n in findings.refused.items():
            self._counters.add("refused", n, reason=reason)
            self._accounts.refuse(expected_author, reason, n)
            log.info("refused %d of %s: %s", n, expected_author.hex()[:16], reason)
        if findings.admitted:
            self._counters.add("admitted", len(findings.admitted))
            self._accounts.admit(expected_author, len(findings.admitted))
        return findings.admitted

    def _open(self, frame: bytes, expected: bytes, findings: _Findings) -> OpenFrame | None:
        if self._accounts.banned(expected):
            findings.refused[refusals.BANNED] += 1
            return None
        try:
            opened = self._opener(frame, self._swarm_id, self._manifest)
        except ProtocolError as error:
            findings.refused[error.code] += 1
            return None
        if opened.author != expected:
            findings.refused[refusals.WRONG_AUTHOR] += 1
            return None
        return opened

    def _examine_groups(self, opened: OpenFrame, findings: _Findings) -> None:
        now = self._clock.time()
        timely = []
        for group in opened.batch.groups:
            fault = self._fault(group, now)
            if fault:
                findings.refused[fault] += 1
            else:
                timely.append(group)
        for group in self._unseen(opened.author, timely, now, findings):
            if findings.stalls == MAX_STALLS:
                findings.refused[refusals.ABANDONED] += 1
                continue
            verdict = self._verdict(opened.author, group, findings)
            if verdict:
                findings.admitted.append(self._pooled(opened, group, verdict, now))

    def _fault(self, group: Group, now: float) -> str | None:
        """What can be said against a group without its history and its task."""
        epoch = epoch_of(now, self._manifest.epoch_seconds)
        if group.epoch > epoch + AHEAD_EPOCHS:
            return refusals.EPOCH_AHEAD
        if group.epoch < epoch - self._manifest.max_age_epochs:
            return refusals.STALE_EPOCH
        if group.epoch < self._first_epoch:
            return refusals.BEFORE_RESTORE
        for completion in group.completions:
            # No family of the catalogue has an environment that speaks.
            if [s.writer for s in completion.segments] != [Writer.POLICY]:
                return refusals.UNEXPECTED_SEGMENTS
        return None

    def _unseen(
        self, author: bytes, groups: list[Group], now: float, findings: _Findings
    ) -> list[Group]:
        """The groups whose draws are met for the first time; they count as met from here on.

        The note is made before the verdict, so that a crash loses a group rather than admits it
        twice, and a refused draw does not come back with better answers.
        """
        unseen = []
        with self._journal.transaction() as connection:
            for group in groups:
                draw = (author, group.epoch, group.index)
                digest = sha256(encode(group_to_wire(group))).digest()[:16]
                known = connection.execute(_SEEN, draw).fetchone()
                if known is None:
                    connection.execute("INSERT INTO seen VALUES (?, ?, ?, ?)", (*draw, digest))
                    unseen.append(group)
                elif known[0] == digest:
                    findings.refused[refusals.REPLAY] += 1
                else:
                    findings.refused[refusals.EQUIVOCATION] += 1
            epoch = epoch_of(now, self._manifest.epoch_seconds)
            oldest = epoch - self._manifest.max_age_epochs - AHEAD_EPOCHS
            connection.execute("DELETE FROM seen WHERE epoch<?", (oldest,))
        return unseen

    def _verdict(self, author: bytes, group: Group, findings: _Findings) -> Verdict | None:
        """Our verdict, if there is one and it is the author's."""
        seed = task_seed(author, group.epoch, group.index)
        texts = [completion.text for completion in group.completions]
        try:
            verdict = self._judge.judge(group.env, group.level, seed, texts)
        except JudgeRefused as refused:
            findings.refused[refused.reason] += 1
            findings.stalls += refused.reason in (TIMEOUT, CRASHED)
            return None
        except Exception:
            # A bug of ours must not cost us the other groups.
            log.exception("the judge failed on a group of %s", group.env)
            findings.refused[refusals.JUDGE_FAILED] += 1
            return None
        if not _sound(verdict, len(texts)):
            log.error("the judge gave %s to a group of %s", verdict.rewards, group.env)
            findings.refused[refusals.BAD_VERDICT] += 1
            return None
        if not _agree(group.rewards, verdict.rewards):
            findings.refused[refusals.REWARD_MISMATCH] += 1
            return None
        return verdict

    @staticmethod
    def _pooled(opened: OpenFrame, group: Group, verdict: Verdict, now: float) -> PooledGroup:
        scored = tuple(
            replace(completion, reward=reward)
            for completion, reward in zip(group.completions, verdict.rewards, strict=True)
        )
        return PooledGroup(
            author=opened.author,
            content_id=opened.content_id,
            group=replace(group, completions=scored),
            prompt=verdict.prompt,
            claimed=group.rewards,
            encoding=opened.batch.encoding,
            temperature=opened.batch.temperature,
            policy_step=opened.batch.policy_step,
            received=now,
        )


def _sound(verdict: Verdict, texts: int) -> bool:
    rewards = verdict.rewards
    return len(rewards) == texts and all(math.isfinite(r) and 0.0 <= r <= 1.0 for r in rewards)


def _agree(claimed: tuple[float, ...], own: tuple[float, ...]) -> bool:
    """Whether two verdicts are one; a claim that is not a number agrees with nothing."""
    return all(abs(c - o) <= REWARD_TOLERANCE for c, o in zip(claimed, own, strict=True))
