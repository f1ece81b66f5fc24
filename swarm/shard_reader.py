"""Which shards of the hash table one node looks into, and what that tells of the swarm's size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from protocol.keys import reader_paths, record_key, shard_on
from swarm.common.bounded import lot
from swarm.density import ALL_DEPTHS, Density
from swarm.transport.transport import Transport

SOUNDING_EPOCHS = 16
"""All depths are looked into about once in so many epochs, and while nobody is found: two parts of
a swarm that were apart may have come to different depths."""

Found = dict[int, dict[bytes, bytes]]
"""Records along one path, by depth and author."""


class ShardReader:
    """Reads announcements along two paths that nobody else can foresee.

    Args:
        author: this node's public key.
        secret: local bytes that the paths are drawn with.

    Attributes:
        density: what the depth of this node's own announcements follows.
    """

    def __init__(self, transport: Transport, swarm_id: bytes, author: bytes, secret: bytes) -> None:
        self.density = Density()
        self._transport = transport
        self._swarm_id = swarm_id
        self._author = author
        self._secret = secret
        self._turn = 0
        self._counted = -1
        self._alone = True
        self._counting = asyncio.Lock()

    async def read(self, epoch: int) -> list[bytes]:
        """Records that stand along one of this node's paths of an epoch, each path in its turn."""
        self._turn += 1
        path = self._paths(epoch)[self._turn % 2]
        return _records(await self._along(epoch, [path], self.density.depths()))

    def keys(self, epoch: int) -> set[str]:
        """Where the shards along both paths of an epoch lie."""
        depths = self.density.depths()
        return {
            record_key(self._swarm_id, epoch, depth, shard_on(path, depth))
            for path in self._paths(epoch)
            for depth in depths
        }

    async def count(self, epoch: int) -> list[bytes]:
        """Once in ``epoch``, count who announced in the one before; the records found.

        A newcomer, to whom the epoch before shows nobody, counts the present one.
        """
        async with self._counting:
            if self._counted == epoch:
                return []
            sounding = self._alone or self._sounds(epoch)
            depths = ALL_DEPTHS if sounding else self.density.depths()
            paths = await self._along(epoch - 1, self._paths(epoch - 1), depths)
            if sounding and self._nobody(paths):
                paths = await self._along(epoch, self._paths(epoch), depths)
            self._alone = self._nobody(paths)
            if sounding:
                self.density.sound(paths)
            else:
                self.density.count(paths)
            self._counted = epoch
            return _records(paths)

    def _paths(self, epoch: int) -> tuple[int, int]:
        return reader_paths(self._author, epoch, self._secret)

    async def _along(self, epoch: int, paths: Iterable[int], depths: Iterable[int]) -> list[Found]:
        """What stands along some paths of an epoch, no shard read twice."""
        lines = [{depth: shard_on(path, depth) for depth in depths} for path in paths]
        places = sorted({place for line in lines for place in line.items()})
        keys = [record_key(self._swarm_id, epoch, depth, shard) for depth, shard in places]
        found = await asyncio.gather(*map(self._transport.read, keys))
        at = dict(zip(places, found, strict=True))
        return [{depth: at[depth, shard] for depth, shard in line.items()} for line in lines]

    def _nobody(self, paths: Iterable[Found]) -> bool:
        """Whether no shard holds anybody else."""
        return not any(
            author != self._author
            for path in paths
            for records in path.values()
            for author in records
        )

    def _sounds(self, epoch: int) -> bool:
        return lot(self._secret, b"sounding", epoch.to_bytes(8, "big")) < 1 / SOUNDING_EPOCHS


def _records(paths: Iterable[Found]) -> list[bytes]:
    return [record for path in paths for records in path.values() for record in records.values()]
