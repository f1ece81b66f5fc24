"""The sending half of a member: signs waiting groups into frames and announces them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby

from protocol.announcement import Offer, offer_of
from protocol.codec import MAX_OFFERS, PLAIN_RATIO
from protocol.errors import ProtocolError
from protocol.frame import Packing, check_group, pack, seal, without_tokens
from protocol.rollout import Batch, EncodedGroup, Group
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.util import Wakeup
from swarm.directory import Directory
from swarm.groups import Origin, pack_waiting, unpack_waiting
from swarm.journal import Journal

log = logging.getLogger(__name__)

MAX_OUTBOX_BYTES = 64 << 20
MAX_ANNOUNCEMENTS = 4  # per time slot; storing one costs the network a search for its peers

_OFFER = "content_id, size, groups, env_digest, informative"
_YOUNGEST_WAITING = """
SELECT number, plain FROM waiting WHERE number IN (
    SELECT number FROM (
        SELECT number, sum(length(plain)) OVER (ORDER BY number DESC) - length(plain) AS younger
        FROM waiting
    ) WHERE younger<?
) ORDER BY number
"""
_STALE_WAITING = "DELETE FROM waiting WHERE epoch<?"
_OLD_FRAMES = "DELETE FROM frames WHERE created<?"
_SURPLUS_FRAMES = """
DELETE FROM frames WHERE content_id IN (
    SELECT content_id FROM (
        SELECT content_id, sum(size) OVER (ORDER BY created DESC, content_id) AS upto FROM frames
    ) WHERE upto>?
)
"""
_SURPLUS_WAITING = """
DELETE FROM waiting WHERE number IN (
    SELECT number FROM (
        SELECT number, sum(length(plain)) OVER (ORDER BY number DESC) AS upto FROM waiting
    ) WHERE upto>?
)
"""


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """A group that is in no frame yet, and its number in the outbox."""

    number: int
    encoded: EncodedGroup
    origin: Origin

    @property
    def group(self) -> Group:
        return self.encoded.group


class Outbox:
    """Groups on their way into frames, and the frames that are served.

    A group enters once and leaves in one frame. After a crash between signing and :meth:`keep`, the
    groups are signed again under another sequence number. No peer saw the first frame, so no task
    sample gets two different sets of answers. Counts
    ``outbox_dropped{reason=group_refused|group_stale|group_backlog|frame_old|frame_surplus}`` and
    ``groups_without_tokens``. ``filled`` is set whenever groups are added.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self.filled = Wakeup()
        self.policy_step = 0  # of the latest :meth:`put`
        self._journal = journal
        self._counters = counters

    def put(self, groups: Iterable[Group], origin: Origin) -> None:
        """Add local groups, if any, to be signed by the network's thread.

        A group that no reader could open is kept as text alone, or dropped; either is counted.
        """
        self.policy_step = origin.policy_step
        pairs = [(group.epoch, self._packed(group, origin)) for group in groups]
        rows = [(epoch, plain) for epoch, plain in pairs if plain is not None]
        if rows:
            with self._journal.transaction() as connection:
                connection.executemany("INSERT INTO waiting (epoch, plain) VALUES (?, ?)", rows)
            self.filled.set()

    def _packed(self, group: Group, origin: Origin) -> bytes | None:
        try:
            return pack_waiting(group, origin)
        except ProtocolError as error:
            refusal = error
        try:
            text_only = pack_waiting(without_tokens(group), origin)
        except ProtocolError:
            log.error("a group that the protocol refuses is not shared: %s", refusal)
            self._counters.add("outbox_dropped", reason="group_refused")
            return None
        log.warning("a group is shared without token ids and log-probs: %s", refusal)
        self._counters.add("groups_without_tokens")
        return text_only

    def take(self, most_bytes: int) -> list[QueuedGroup]:
        """Return the youngest waiting groups, up to ``most_bytes`` in the journal.

        The oldest comes first and does not count. They wait until :meth:`keep` or :meth:`drop`.
        """
        rows = self._journal.read(_YOUNGEST_WAITING, (most_bytes,))
        return [QueuedGroup(number, *unpack_waiting(plain)) for number, plain in rows]

    def keep(self, offer: Offer, frame: bytes, created: float, sealed: Sequence[int]) -> None:
        """Serve a frame from now on; atomically remove its groups, numbered ``sealed``."""
        with self._journal.transaction(durable=True) as connection:
            counts = offer.size, offer.groups, offer.env_digest, offer.informative
            row = offer.content_id, created, *counts, frame
            connection.execute("REPLACE INTO frames VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            connection.executemany("DELETE FROM waiting WHERE number=?", [(n,) for n in sealed])

    def drop(self, numbers: Iterable[int]) -> None:
        """Drop waiting groups, such as those that fit into no frame."""
        with self._journal.transaction() as connection:
            connection.executemany("DELETE FROM waiting WHERE number=?", [(n,) for n in numbers])

    def get(self, content_id: bytes) -> bytes | None:
        """Return the frame of that content id, or None."""
        rows = self._journal.read("SELECT frame FROM frames WHERE content_id=?", (content_id,))
        return rows[0][0] if rows else None

    def offers(self, limit: int) -> list[Offer]:
        """Return the ``limit`` frames kept last, newest first."""
        # By row, because times would prefer frames signed while the clock was ahead.
        query = f"SELECT {_OFFER} FROM frames ORDER BY rowid DESC LIMIT ?"
        return [Offer(*row) for row in self._journal.read(query, (limit,))]

    def prune(self, *, oldest_epoch: int, oldest_frame: float, max_bytes: int) -> None:
        """Drop what no peer would accept any more, and the oldest beyond ``max_bytes`` each.

        These are waiting groups of time slots before ``oldest_epoch``, and frames created before
        the Unix time ``oldest_frame``.
        """
        with self._journal.transaction() as connection:
            counts = {
                "group_stale": connection.execute(_STALE_WAITING, (oldest_epoch,)).rowcount,
                "group_backlog": connection.execute(_SURPLUS_WAITING, (max_bytes,)).rowcount,
                "frame_old": connection.execute(_OLD_FRAMES, (oldest_frame,)).rowcount,
                "frame_surplus": connection.execute(_SURPLUS_FRAMES, (max_bytes,)).rowcount,
            }
        for reason, count in counts.items():
            if count:
                self._counters.add("outbox_dropped", count, reason=reason)
                log.info("outbox: %d dropped (%s)", count, reason)


@dataclass(eq=False)
class Publisher:
    """The sending half of a member; ``filled`` is set if there is something to send.

    It signs at most four frames per time slot, because a record offers no more.
    """

    _directory: Directory
    _outbox: Outbox
    _journal: Journal
    _clock: Clock
    _counters: Counters

    def __post_init__(self) -> None:
        self.filled = self._outbox.filled
        self._epoch = -1
        self._frames_left = 0
        self._announcements_left = 0
        self._announced = False

    async def publish(self) -> bool:
        """Sign what waits; announce news, and once per slot. Return whether it had news."""
        if self._epoch != self._directory.epoch:
            self._epoch = self._directory.epoch
            self._frames_left = MAX_OFFERS
            self._announcements_left = MAX_ANNOUNCEMENTS
            self._announced = False
            manifest = self._directory.manifest
            self._outbox.prune(
                oldest_epoch=self._epoch - manifest.max_age_epochs,
                oldest_frame=self._clock.time() - manifest.max_age_epochs * manifest.epoch_seconds,
                max_bytes=MAX_OUTBOX_BYTES,
            )
        if not self._announcements_left:
            return False
        has_news = self._seal_waiting() > 0
        if has_news or not self._announced:
            self._announcements_left -= 1
            self._announced = False
            offers, step = self._outbox.offers(MAX_OFFERS), self._outbox.policy_step
            sequence = self._journal.next_sequence()
            self._announced = await self._directory.announce(offers, step, sequence)
        return has_news

    def _seal_waiting(self) -> int:
        """Sign waiting groups, the youngest first; return the number of frames.

        A frame has one :class:`Origin`, so the groups are split into runs of equal ones. A run may
        span several policy steps; its frames state the latest.
        """
        available = self._frames_left
        if not available:
            return 0
        max_bytes = available * PLAIN_RATIO * self._directory.manifest.max_frame_bytes
        groups = self._within_manifest(self._outbox.take(max_bytes))
        runs = [list(run) for _, run in groupby(groups, lambda w: replace(w.origin, policy_step=0))]
        for run in reversed(runs):
            if not self._frames_left:
                break
            step = max(w.origin.policy_step for w in run)
            self._seal_run(replace(run[0].origin, policy_step=step), run)
        return available - self._frames_left

    def _within_manifest(self, waiting: list[QueuedGroup]) -> list[QueuedGroup]:
        """Return the groups within the manifest and drop those that peers would penalize."""
        errors: dict[int, ProtocolError] = {}
        for entry in waiting:
            try:
                check_group(entry.group, self._directory.manifest)
            except ProtocolError as error:
                errors[entry.number] = error
        if errors:
            log.warning(
                "%d groups are not shared, because they exceed the limits of this swarm's "
                "manifest: %s; decrease engine.max_new_tokens or engine.group_size",
                len(errors),
                next(iter(errors.values())),
            )
            self._counters.add("outbox_dropped", len(errors), reason="over_manifest")
            self._outbox.drop(errors)
        return [entry for entry in waiting if entry.number not in errors]

    def _seal_run(self, origin: Origin, run: list[QueuedGroup]) -> None:
        numbers = {(w.group.epoch, w.group.index): w.number for w in run}

        def numbered(groups: Iterable[EncodedGroup]) -> list[int]:
            return [numbers[entry.group.epoch, entry.group.index] for entry in groups]

        packing = self._pack([queued.encoded for queued in run])
        for groups in packing.frames[-self._frames_left :]:
            self._seal(origin, groups, numbered(groups))
        if packing.oversize:
            log.warning("%d groups are not shared: too large for a frame", len(packing.oversize))
            self._counters.add("outbox_dropped", len(packing.oversize), reason="group_oversize")
            self._outbox.drop(numbered(packing.oversize))

    def _pack(self, groups: list[EncodedGroup]) -> Packing:
        limit = self._directory.manifest.max_frame_bytes
        packing = pack(groups, limit)
        if not packing.oversize:
            return packing
        texts = [EncodedGroup.of(without_tokens(entry.group)) for entry in packing.oversize]
        text_only = pack(texts, limit)
        if count := len(packing.oversize) - len(text_only.oversize):
            log.warning(
                "%d groups are shared without token ids and log-probs, because they would not "
                "fit into a frame of %d bytes: their completions are too long, or too many",
                count,
                limit,
            )
            self._counters.add("groups_without_tokens", count)
        return Packing(packing.frames + text_only.frames, text_only.oversize)

    def _seal(self, origin: Origin, encoded: tuple[EncodedGroup, ...], numbers: list[int]) -> None:
        created = self._clock.time()
        sequence = self._journal.next_sequence()
        groups = tuple(entry.group for entry in encoded)
        batch = Batch(sequence=sequence, created=created, groups=groups, **asdict(origin))
        try:
            directory = self._directory
            frame = seal(batch, directory.identity, directory.swarm_id, encoded=encoded)
            offer = offer_of(frame, batch, self._directory.manifest)
        except ProtocolError:
            log.exception("groups that the protocol refuses are not shared")
            self._counters.add("outbox_dropped", len(groups), reason="group_refused")
            self._outbox.drop(numbers)
            return
        self._outbox.keep(offer, frame, created, numbers)
        self._frames_left -= 1
        self._counters.add("frames_sealed")
