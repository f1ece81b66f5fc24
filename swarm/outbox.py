"""Own experience on its way out: groups that wait for a frame, and the frames that are served."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocol.announcement import Offer
from protocol.errors import ProtocolError
from protocol.frame import without_tokens
from protocol.rollout import Group
from swarm.common.counters import Counters
from swarm.common.wakeup import Wakeup
from swarm.journal import Journal
from swarm.origin import Origin
from swarm.packing import pack_waiting, unpack_waiting

log = logging.getLogger(__name__)

_OFFER = "content_id, size, groups, env_digest, informative"


@dataclass(frozen=True, slots=True)
class Waiting:
    """A group that no frame holds yet, and its number in the outbox."""

    number: int
    group: Group
    origin: Origin


class Outbox:
    """Groups go in once, leave in one frame, and the frame is served as long as it is kept.

    A kill between sealing and :meth:`keep` leaves the groups waiting: they are sealed again under
    another sequence number, and as nobody saw the first frame, no draw is told in two ways.

    Args:
        journal: where everything lies.
        counters: ``outbox_dropped{reason=group_refused|group_stale|group_backlog|frame_old|
            frame_surplus}``, ``groups_without_tokens``.

    Attributes:
        filled: set whenever groups have come in.
    """

    def __init__(self, journal: Journal, counters: Counters) -> None:
        self.filled = Wakeup()
        self._journal = journal
        self._counters = counters

    def put(self, groups: Iterable[Group], origin: Origin) -> None:
        """Add own groups, to be sealed by whoever serves the network.

        One that no reader could open waits as text alone, or is dropped; either is counted.
        """
        packed = [(group.epoch, self._packed(group, origin)) for group in groups]
        rows = [(epoch, plain) for epoch, plain in packed if plain is not None]
        with self._journal.transaction() as connection:
            connection.executemany("INSERT INTO waiting (epoch, plain) VALUES (?, ?)", rows)
        self.filled.set()

    def _packed(self, group: Group, origin: Origin) -> bytes | None:
        try:
            return pack_waiting(group, origin)
        except ProtocolError as error:
            refusal = error
        try:
            bare = pack_waiting(without_tokens(group), origin)
        except ProtocolError:
            log.error("a group that the protocol refuses is not shared: %s", refusal)
            self._counters.add("outbox_dropped", reason="group_refused")
            return None
        log.warning("a group is shared without token ids and log-probs: %s", refusal)
        self._counters.add("groups_without_tokens")
        return bare

    def take(self, most_bytes: int) -> list[Waiting]:
        """The youngest waiting groups, the oldest of them first.

        They wait until :meth:`keep` or :meth:`drop`.

        Args:
            most_bytes: that they have in the journal together, but for the last.
        """
        rows = self._journal.read(_YOUNGEST_WAITING, (most_bytes,))
        return [Waiting(number, *unpack_waiting(plain)) for number, plain in rows]

    def keep(self, offer: Offer, frame: bytes, created: float, sealed: Sequence[int]) -> None:
        """Serve a frame from now on; in the same moment its groups wait no longer.

        Args:
            offer: describes the frame.
            frame: the signed bytes.
            created: unix time, seconds.
            sealed: numbers of the groups in it.
        """
        with self._journal.transaction(durable=True) as connection:
            connection.execute(
                "REPLACE INTO frames VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    offer.content_id,
                    created,
                    offer.size,
                    offer.groups,
                    offer.env_digest,
                    offer.informative,
                    frame,
                ),
            )
            connection.executemany("DELETE FROM waiting WHERE number=?", [(n,) for n in sealed])

    def drop(self, numbers: Iterable[int]) -> None:
        """Give up waiting groups, such as those that fit into no frame."""
        with self._journal.transaction() as connection:
            connection.executemany("DELETE FROM waiting WHERE number=?", [(n,) for n in numbers])

    def get(self, content_id: bytes) -> bytes | None:
        """The frame of that content id, None where it is not kept."""
        rows = self._journal.read("SELECT frame FROM frames WHERE content_id=?", (content_id,))
        return rows[0][0] if rows else None

    def offers(self, limit: int) -> list[Offer]:
        """The ``limit`` frames kept last, the last first.

        In the order of rows, not of clock times: frames sealed while the clock was ahead would
        otherwise be offered before all others until their time has come.
        """
        query = f"SELECT {_OFFER} FROM frames ORDER BY rowid DESC LIMIT ?"
        return [Offer(*row) for row in self._journal.read(query, (limit,))]

    def prune(self, *, oldest_epoch: int, oldest_frame: float, max_bytes: int) -> None:
        """Forget what nobody would take any more.

        Args:
            oldest_epoch: waiting groups drawn before it are dropped.
            oldest_frame: frames created before this unix time are dropped.
            max_bytes: beyond these, the oldest frames are dropped, and waiting groups that alone
                take more, the oldest first.
        """
        with self._journal.transaction() as connection:
            dropped = {
                "group_stale": connection.execute(_STALE_WAITING, (oldest_epoch,)).rowcount,
                "group_backlog": connection.execute(_SURPLUS_WAITING, (max_bytes,)).rowcount,
                "frame_old": connection.execute(_OLD_FRAMES, (oldest_frame,)).rowcount,
                "frame_surplus": connection.execute(_SURPLUS_FRAMES, (max_bytes,)).rowcount,
            }
        for reason, count in dropped.items():
            if count:
                self._counters.add("outbox_dropped", count, reason=reason)
                log.info("outbox: %d dropped (%s)", count, reason)


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
