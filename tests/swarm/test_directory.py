"""Announcements: their places, which one counts, and what a new node can read."""

import asyncio
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.announcement import (
    depth_for,
    open_announcement,
    reader_paths,
    record_key,
    shard_of,
    shard_on,
)
from protocol.codec import MAX_DEPTH
from protocol.manifest import AllowList, ProofOfWork, open_manifest, swarm_id
from protocol.messages import (
    GOSSIP_STREAM,
    MANIFEST_STREAM,
    MAX_DIGESTS,
    GossipRequest,
    encode_gossip_request,
)
from swarm.directory import (
    ALL_DEPTHS,
    LARGEST_STEP,
    SOUNDING_EPOCHS,
    Density,
    Path,
    ShardReader,
    authors_along,
)
from swarm.exchange import fetch_manifest
from swarm.transport.transport import Refusal, Refused
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, identity, signed_record


async def test_announcements_keep_one_depth_for_the_whole_time_slot(swarm, anna) -> None:
    directory, author = anna.directory, anna.identity.author
    epoch, several = directory.epoch, {identity(f"author {n}").author for n in range(8)}
    directory.shards.density.sound([{6: several}] * 2)
    assert await directory.announce([], 5, 1)
    directory.shards.density.sound([{0: several}] * 2)
    assert directory.shards.density.depth == 0.0
    assert await directory.announce([], 5, 2)

    shard = shard_of(author, epoch, 5)
    found = await anna.transport.read(record_key(directory.swarm_id, epoch, 5, shard))
    opened = open_announcement(found[author], directory.swarm_id, swarm.manifest)[1]
    assert (opened.depth, opened.shard, opened.sequence) == (5, shard, 2)
    assert not await anna.transport.read(record_key(directory.swarm_id, epoch, 0, 0))

    await swarm.clock.advance(EPOCH_SECONDS)
    assert await directory.announce([], 5, 3)
    key = record_key(directory.swarm_id, epoch + 1, 0, 0)
    assert list(await anna.transport.read(key)) == [author]


async def test_gossip_omits_known_announcements_until_a_newer_one_exists(anna, ben):
    sizes = []
    for sequence in (1, 2):
        await anna.directory.announce([], 1, sequence)
        for _ in range(2):
            records = await ben.exchange.gossip(anna.transport.peer_id)
            sizes.append(len(records))
            for record in records:
                assert ben.directory.accept(record) is not None
    assert sizes == [1, 0, 1, 0]


async def test_gossip_budget_counts_the_search_among_known_records(swarm):
    request = encode_gossip_request(GossipRequest(0, 1, ()))
    flo, served = await swarm.join("flo"), []
    for known in (0, 256):
        anna = await swarm.join(f"anna {known}", upload_rate=1e5)
        for number in range(known):
            record = signed_record(anna, identity(f"author {number}"))
            anna.directory.accept(record.value)
        served.append(0)
        for _ in range(500):
            with suppress(Refusal):
                await anna.transport.serve(flo.transport.peer_id, GOSSIP_STREAM, request)
                served[-1] += 1
    assert served[1] < served[0] / 2


async def test_digests_are_empty_when_they_exceed_the_maximum(anna) -> None:
    for number in range(MAX_DIGESTS + 1):
        epoch = anna.directory.epoch
        assert len(anna.directory.digests(epoch - 1)) == number
        record = signed_record(anna, identity(f"author {number}"))
        assert anna.directory.accept(record.value) is not None
    assert anna.directory.digests(epoch - 1) == ()


async def test_later_announcement_replaces_the_earlier_one(anna, ben) -> None:
    for sequence in (1, 2, 3):
        assert await anna.directory.announce([], sequence, sequence)
    (found,) = await ben.directory.read()
    assert found.announcement.sequence == 3
    assert await ben.directory.read() == []


async def test_node_reports_another_node_using_its_key(swarm, anna, ben, caplog) -> None:
    def copied_record() -> bytes:
        return signed_record(anna, anna.identity, sequence=7, policy_step=7).value

    before = copied_record()  # An earlier process of this node leaves such a record.
    assert await anna.directory.announce([], 1, 8)
    await swarm.clock.advance(EPOCH_SECONDS)
    assert await anna.directory.announce([], 1, 9)
    await ben.directory.read()
    for record in (before, *(known.record for known in ben.directory.known())):
        assert anna.directory.accept(record) is None
    assert anna.count("identity_elsewhere") == 0 and not caplog.records
    assert anna.directory.accept(copied_record()) is None
    assert anna.count("identity_elsewhere") == 1
    assert "copy of its run folder" in caplog.text


async def test_announcement_expires_after_the_next_time_slot(swarm, anna, ben):
    await anna.directory.announce([], 1, 1)
    await swarm.clock.advance(EPOCH_SECONDS)
    assert len(await ben.directory.read()) == 1
    await swarm.clock.advance(EPOCH_SECONDS)
    assert ben.directory.known() == []


@pytest.mark.parametrize("rule", [ProofOfWork(8), AllowList((identity("anna").author,))])
async def test_announcements_must_satisfy_the_admission_rule(rule) -> None:
    swarm = MemorySwarm(admission=rule)
    anna, ben = await swarm.join("anna"), await swarm.join("ben")
    assert await anna.directory.announce([], 1, 1)
    assert len(await ben.directory.read()) == 1
    if isinstance(rule, AllowList):
        assert not await ben.directory.announce([], 1, 1)


async def test_cancelled_nonce_search_frees_its_thread() -> None:
    anna = await MemorySwarm(admission=ProofOfWork(40)).join("anna")
    with ThreadPoolExecutor(1) as one:
        asyncio.get_running_loop().set_default_executor(one)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anna.directory.announce([], 1, 1), 0.01)
        await asyncio.wait_for(asyncio.to_thread(int), 10)


async def test_new_peer_fetches_the_manifest_and_members_reject_a_payload(swarm):
    anna, new_node = await swarm.join("anna"), await swarm.stranger("newcomer")
    signed = await fetch_manifest(new_node, anna.transport.peer_id)
    assert open_manifest(signed) == swarm.manifest
    assert swarm_id(signed) == anna.directory.swarm_id
    with pytest.raises(Refused):
        await new_node.request(
            anna.transport.peer_id, MANIFEST_STREAM, b"more", limit=9, deadline=9
        )


def author(number: int) -> bytes:
    return number.to_bytes(32, "big")


def swarm_of(count: int, depth: float, rng: random.Random) -> list[tuple[int, int, bytes]]:
    """Return authors at the depths around ``depth``: depth, path and name of each."""
    return [
        (min(int(depth + rng.random()), MAX_DEPTH), rng.getrandbits(64), author(number))
        for number in range(count)
    ]


def along(swarm: list[tuple[int, int, bytes]], depths: tuple[int, ...], path: int) -> Path:
    found: dict[int, list[bytes]] = {depth: [] for depth in depths}
    for depth, its_path, name in swarm:
        if depth in found and its_path >> (64 - depth) == path >> (64 - depth):
            found[depth].append(name)
    return found


def paths_of(rng: random.Random) -> tuple[int, int]:
    first = rng.getrandbits(64)
    return first, first ^ (1 << 63) ^ rng.getrandbits(60)


@pytest.mark.parametrize("count", [5, 40, 300, 2000])
@pytest.mark.parametrize("chosen", [0.0, 2.5, 4.0])
def test_mean_author_count_is_accurate_for_any_chosen_depth(count: int, chosen: float):
    rng = random.Random(count)
    swarm = swarm_of(count, chosen, rng)
    counts = [authors_along(along(swarm, ALL_DEPTHS, rng.getrandbits(64))) for _ in range(400)]
    assert fmean(counts) == pytest.approx(count, rel=0.2)


def test_author_present_at_every_depth_counts_once() -> None:
    assert authors_along({depth: [author(1)] for depth in ALL_DEPTHS}) == 1.0


@pytest.mark.parametrize("count", [1, 10, 33, 100, 1000, 10_000])
def test_nodes_converge_to_the_right_depth_and_read_up_to_48_authors(count: int):
    rng = random.Random(count)
    nodes = [Density() for _ in range(8)]
    for _ in range(20):
        swarm = swarm_of(count, fmean(node.depth for node in nodes), rng)
        for node in nodes:
            paths = paths_of(rng)
            depths = node.depths() if node.known else ALL_DEPTHS
            found = [along(swarm, depths, path) for path in paths]
            if node.known:
                node.count(found)
            else:
                node.sound(found)
    assert [node.depth for node in nodes] == pytest.approx([depth_for(count)] * 8, abs=0.8)
    totals = []
    for node in nodes:
        found = [along(swarm, node.depths(), path) for path in paths_of(rng)]
        totals.append(len({name for path in found for names in path.values() for name in names}))
    assert min(count, 16) <= fmean(totals) <= 48


def test_first_sounding_finds_the_depth_for_a_large_swarm() -> None:
    rng = random.Random(3)
    swarm = swarm_of(10_000, depth_for(10_000), rng)
    for _ in range(10):
        new_node = Density()
        new_node.sound([along(swarm, ALL_DEPTHS, path) for path in paths_of(rng)])
        assert new_node.depth == pytest.approx(depth_for(10_000), abs=1.2)


def test_node_in_a_small_partition_finds_the_swarm_depth_when_it_sounds():
    rng = random.Random(4)
    swarm = swarm_of(10_000, depth_for(10_000), rng)
    node = Density()
    for _ in range(3):
        node.count([{0: [author(n) for n in range(10)]}] * 2)
    assert node.depth == 0.0
    node.sound([along(swarm, ALL_DEPTHS, path) for path in paths_of(rng)])
    assert node.depth > 8.0


@given(st.lists(st.lists(st.integers(0, 2000), min_size=13, max_size=13), max_size=12))
def test_one_count_moves_the_depth_by_one_or_less(epochs: list[list[int]]) -> None:
    node = Density()
    node.sound([{0: [author(n) for n in range(40)]}] * 2)
    for counts in epochs:
        before = node.depth
        found = {d: [author(4000 * d + n) for n in range(count)] for d, count in enumerate(counts)}
        node.count([{depth: found[depth] for depth in node.depths()}] * 2)
        assert abs(node.depth - before) <= LARGEST_STEP + 1e-9
        assert 0.0 <= node.depth <= MAX_DEPTH


def test_sybil_records_on_one_path_do_not_change_the_depth_estimate() -> None:
    honest = [author(n) for n in range(10)]
    new_node = Density()
    new_node.sound([{0: honest, 12: [author(99)]}, {0: honest, 12: []}])
    assert new_node.depth == 0.0
    for _ in range(3):
        new_node.count([{0: honest}] * 2)
    new_node.count([{0: [author(n) for n in range(1000)]}] * 2)
    assert new_node.depth == 0.0, "Sybil identities of one slot change no depth"


SWARM = bytes(range(32))
AUTHOR = identity("anna").author
OTHER = identity("ben").author
EPOCH = 1000


class Table:
    """A DHT that records which keys are read."""

    def __init__(self) -> None:
        self.records: dict[str, dict[bytes, bytes]] = {}
        self.asked: list[str] = []

    async def read(self, key: str) -> dict[bytes, bytes]:
        self.asked.append(key)
        await asyncio.sleep(0)
        return self.records.get(key, {})

    def put(self, epoch: int, depth: int, shard: int, count: int) -> None:
        self.records[record_key(SWARM, epoch, depth, shard)] = {
            bytes([number % 256, number // 256, depth, shard % 256]) * 8: b"record"
            for number in range(count)
        }


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def reader(table: Table) -> ShardReader:
    return ShardReader(table, SWARM, AUTHOR, b"anna")


def keys(epoch: int, depths: range) -> set[str]:
    return {
        record_key(SWARM, epoch, depth, shard_on(path, depth))
        for path in reader_paths(AUTHOR, epoch, b"anna")
        for depth in depths
    }


async def test_new_reader_checks_all_depths_in_both_slots_if_all_are_empty(table, reader):
    assert await reader.count(EPOCH) == []
    all_keys = keys(EPOCH - 1, range(MAX_DEPTH + 1)) | keys(EPOCH, range(MAX_DEPTH + 1))
    assert set(table.asked) == all_keys
    assert Counter(table.asked) == Counter(dict.fromkeys(all_keys, 1))
    assert reader.density.known


async def test_new_reader_skips_the_current_slot_if_the_last_has_peers(table, reader) -> None:
    table.put(EPOCH - 1, 0, 0, 5)
    assert len(await reader.count(EPOCH)) == 10, "each path is counted once"
    assert set(table.asked) == keys(EPOCH - 1, range(MAX_DEPTH + 1))


async def test_concurrent_counts_read_each_time_slot_once(table, reader) -> None:
    table.put(EPOCH - 1, 0, 0, 5)
    found = await asyncio.gather(*(reader.count(EPOCH) for _ in range(3)))
    assert sorted(map(len, found)) == [0, 0, 10]
    assert len(table.asked) == len(set(table.asked))


async def test_a_small_swarm_is_read_under_one_key(table, reader) -> None:
    table.put(EPOCH - 1, 0, 0, 5)
    await reader.count(EPOCH)
    table.asked.clear()
    await reader.read(EPOCH)
    assert table.asked == [record_key(SWARM, EPOCH, 0, 0)]


async def test_reader_reads_two_shards_then_two_others_in_a_large_swarm(table, reader):
    for path in reader_paths(AUTHOR, EPOCH - 1, b"anna"):
        table.put(EPOCH - 1, 5, shard_on(path, 5), 20)
    await reader.count(EPOCH)
    assert reader.density.depth == depth_for(640)
    table.asked.clear()
    await reader.read(EPOCH)
    assert len(table.asked) == 2
    await reader.read(EPOCH)
    assert (set(table.asked), len(table.asked)) == (keys(EPOCH, range(5, 7)), 4)


async def test_reader_checks_all_depths_if_empty_and_otherwise_occasionally(table, reader):
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


async def test_reader_does_not_count_its_own_record_as_a_peer(table, reader) -> None:
    for epoch in range(EPOCH, EPOCH + 3):
        table.records[record_key(SWARM, epoch - 1, 0, 0)] = {AUTHOR: b"record"}
        table.asked.clear()
        await reader.count(epoch)
        assert len(table.asked) > 2
    table.records[record_key(SWARM, epoch, 0, 0)] = {AUTHOR: b"record", OTHER: b"record"}
    table.asked.clear()
    await reader.count(epoch + 1)
    assert set(table.asked) == keys(epoch, range(MAX_DEPTH + 1)), "the current slot is not read"
