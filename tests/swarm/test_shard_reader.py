"""Which keys of the hash table a node reads, and when."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from protocol.announcement import depth_for, reader_paths, record_key, shard_on
from protocol.codec import MAX_DEPTH
from swarm.directory import SOUNDING_EPOCHS, ShardReader
from tests.swarm.network_parts import identity

SWARM = bytes(range(32))
AUTHOR = identity("anna").author
OTHER = identity("ben").author
EPOCH = 1000


class Table:
    """A hash table that notes which keys are read."""

    def __init__(self) -> None:
        self.records: dict[str, dict[bytes, bytes]] = {}
        self.asked: list[str] = []

    async def read(self, key: str) -> dict[bytes, bytes]:
        self.asked.append(key)
        await asyncio.sleep(0)
        return self.records.get(key, {})

    def put(self, epoch: int, depth: int, shard: int, count: int) -> None:
        """So many authors into a shard."""
        self.records[record_key(SWARM, epoch, depth, shard)] = {
            bytes([number % 256, number // 256, depth, shard % 256]) * 8: b"record"
            for number in range(count)
        }


def run(scenario: Callable[[Table, ShardReader], Awaitable[None]]) -> None:
    table = Table()
    asyncio.run(scenario(table, ShardReader(table, SWARM, AUTHOR, b"anna")))


def keys(epoch: int, depths: range) -> set[str]:
    """Of the shards along anna's paths."""
    return {
        record_key(SWARM, epoch, depth, shard_on(path, depth))
        for path in reader_paths(AUTHOR, epoch, b"anna")
        for depth in depths
    }


def test_a_newcomer_looks_into_all_depths_of_both_epochs_where_it_finds_nobody() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        assert await reader.count(EPOCH) == []
        everywhere = keys(EPOCH - 1, range(MAX_DEPTH + 1)) | keys(EPOCH, range(MAX_DEPTH + 1))
        assert set(table.asked) == everywhere
        assert Counter(table.asked) == Counter(dict.fromkeys(everywhere, 1))
        assert reader.density.known

    run(scenario)


def test_a_newcomer_whom_the_last_epoch_shows_others_leaves_the_present_one_alone() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        table.put(EPOCH - 1, 0, 0, 5)
        assert len(await reader.count(EPOCH)) == 10, "once along each path"
        assert set(table.asked) == keys(EPOCH - 1, range(MAX_DEPTH + 1))

    run(scenario)


def test_an_epoch_is_counted_once_however_many_ask_at_a_time() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        table.put(EPOCH - 1, 0, 0, 5)
        found = await asyncio.gather(*(reader.count(EPOCH) for _ in range(3)))
        assert sorted(map(len, found)) == [0, 0, 10]
        assert len(table.asked) == len(set(table.asked))

    run(scenario)


def test_a_small_swarm_is_read_under_one_key() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        table.put(EPOCH - 1, 0, 0, 5)
        await reader.count(EPOCH)
        table.asked.clear()
        await reader.read(EPOCH)
        assert table.asked == [record_key(SWARM, EPOCH, 0, 0)]

    run(scenario)


def test_a_large_swarm_is_read_in_two_shards_and_in_two_others_the_next_time() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        for path in reader_paths(AUTHOR, EPOCH - 1, b"anna"):
            table.put(EPOCH - 1, 5, shard_on(path, 5), 20)
        await reader.count(EPOCH)
        assert reader.density.depth == depth_for(640)
        table.asked.clear()
        await reader.read(EPOCH)
        assert len(table.asked) == 2
        await reader.read(EPOCH)
        assert (set(table.asked), len(table.asked)) == (keys(EPOCH, range(5, 7)), 4)

    run(scenario)


def test_all_depths_are_looked_into_now_and_then_and_while_nobody_is_found() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        for epoch in range(EPOCH, EPOCH + 3):
            table.asked.clear()
            await reader.count(epoch)
            assert set(table.asked) >= keys(epoch - 1, range(MAX_DEPTH + 1))
        wide = 0
        for epoch in range(EPOCH + 3, EPOCH + 323):
            table.put(epoch - 1, 0, 0, 5)
            table.asked.clear()
            await reader.count(epoch)
            wide += len(table.asked) > 1
        assert 320 / SOUNDING_EPOCHS / 2 < wide < 320 / SOUNDING_EPOCHS * 2

    run(scenario)


def test_a_reader_that_meets_only_itself_has_found_nobody() -> None:
    async def scenario(table: Table, reader: ShardReader) -> None:
        for epoch in range(EPOCH, EPOCH + 3):
            table.records[record_key(SWARM, epoch - 1, 0, 0)] = {AUTHOR: b"record"}
            table.asked.clear()
            await reader.count(epoch)
            assert len(table.asked) > 2
        table.records[record_key(SWARM, epoch, 0, 0)] = {AUTHOR: b"record", OTHER: b"record"}
        table.asked.clear()
        await reader.count(epoch + 1)
        assert set(table.asked) == keys(epoch, range(MAX_DEPTH + 1)), "the present one is left"

    run(scenario)
