"""Signed announcements by the shard that they belong in, such as members store."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from dataclasses import dataclass, field

from protocol.announcement import Announcement, Offer, sign_announcement
from protocol.identity import Identity
from protocol.keys import epoch_of, record_key, shard_of
from protocol.manifest import EnvSpec, Manifest, sign_manifest, swarm_id

EPOCH_SECONDS = 86400.0
DEPTH = 6
LIFETIME_SECONDS = 36 * 3600.0


@dataclass(slots=True)
class Shard:
    """One key of the table and the authors whose records belong under it.

    Attributes:
        records: bytes of the latest record of each author that has one.
    """

    number: int
    key: str
    authors: list[Identity] = field(default_factory=list)
    records: dict[bytes, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Bytes of the records under the key."""
        return sum(self.records.values())


class Announcer:
    """Authors of one swarm and their records of the present epoch.

    Attributes:
        signed: the swarm's manifest.
    """

    def __init__(self) -> None:
        founder = Identity.generate()
        manifest = Manifest(
            name="hash table",
            founder=founder.author,
            created=time.time(),
            catalogue=(EnvSpec("length", "plugin", "1", ("{}",), "{question}", "text"),),
            epoch_seconds=EPOCH_SECONDS,
        )
        self.signed = sign_manifest(manifest, founder)
        self._swarm = swarm_id(self.signed)
        self._epoch = epoch_of(time.time(), EPOCH_SECONDS)
        self._sequence = 0

    def shards(self, sizes: list[int]) -> list[Shard]:
        """A shard of its own for each size, with so many authors."""
        found: defaultdict[int, list[Identity]] = defaultdict(list)
        while any(len(found[number]) < size for number, size in enumerate(sizes)):
            author = Identity.generate()
            found[shard_of(author.author, self._epoch, DEPTH)].append(author)
        keys = [record_key(self._swarm, self._epoch, DEPTH, n) for n in range(len(sizes))]
        return [Shard(n, key, found[n][: sizes[n]]) for n, key in enumerate(keys)]

    def record(self, shard: Shard, author: Identity) -> tuple[bytes, float]:
        """A later record of an author than any before, with two or three offers; its expiry."""
        self._sequence += 1
        expiry = time.time() + LIFETIME_SECONDS
        offers = tuple(
            Offer(os.urandom(32), 20_000, 12, bytes(8), 7) for _ in range(2 + self._sequence % 2)
        )
        told = Announcement(self._epoch, DEPTH, shard.number, self._sequence, 40, expiry, 0, offers)
        return sign_announcement(told, author, self._swarm), expiry
