"""Which records the hash table may hold in one swarm."""

from __future__ import annotations

from protocol.announcement import (
    CLOCK_SKEW,
    Announcement,
    Opener,
    check_record,
    open_announcement,
)
from protocol.errors import Expired, ProtocolError
from protocol.keys import epoch_of
from protocol.manifest import open_manifest, swarm_id
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.transport.transport import RecordView


class RecordRule:
    """Checks records; for :meth:`swarm.transport.transport.Transport.use_validator`.

    Args:
        signed: the swarm's manifest as its founder signed it.
        opener: :func:`protocol.announcement.open_announcement`, or what remembers its results for
            many nodes.

    Attributes:
        manifest: what is in it.
        swarm_id: its hash, 32 bytes.

    Raises:
        ProtocolError: ``signed`` is no manifest.
    """

    def __init__(
        self,
        signed: bytes,
        clock: Clock,
        counters: Counters,
        opener: Opener = open_announcement,
    ) -> None:
        self.signed = signed
        self.manifest = open_manifest(signed)
        self.swarm_id = swarm_id(signed)
        self._clock = clock
        self._counters = counters
        self._opener = opener

    def __call__(self, record: RecordView) -> bool:
        """Whether the hash table may hold a record."""
        now = self._clock.time()
        try:
            _, announcement = check_record(
                record.key,
                record.subkey,
                record.value,
                record.expiry,
                now,
                self.swarm_id,
                self.manifest,
                self._opener,
            )
        except Expired:
            # A replica whose clock is behind still holds it; nothing is wrong with the record.
            return record.expiry > now - CLOCK_SKEW
        except ProtocolError as error:
            self.refused(error.code)
            return False
        return self.begun(announcement.epoch)

    def opened(self, record: bytes) -> tuple[bytes, Announcement]:
        """Author and announcement of a record, everything checked but clock and place.

        Raises:
            ProtocolError
        """
        return self._opener(record, self.swarm_id, self.manifest)

    def begun(self, epoch: int) -> bool:
        """Whether an epoch has begun by this node's clock.

        A record that came early would be there before all others; its author, whose clock may be
        ahead in good faith, announces again.
        """
        if epoch <= epoch_of(self._clock.time(), self.manifest.epoch_seconds):
            return True
        self.refused("not_begun")
        return False

    def refused(self, reason: str) -> None:
        """Count an announcement that is not taken."""
        self._counters.add("announcements_refused", reason=reason)
