"""Sybil identities: sid is silent, sybil makes a swarm look larger, flo floods."""

from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DHTLocalStorage

from experiments.memory_transport import MemoryTransport
from protocol.announcement import depth_for, depth_of, record_key, shard_of
from protocol.identity import Identity
from protocol.messages import (
    GOSSIP_STREAM,
    MAX_GOSSIP,
    PULL_STREAM,
    GossipRequest,
    PullStatus,
    decode_gossip_response,
    encode_gossip_request,
)
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.dht import MAX_SUBKEYS, MAX_VERSIONS, BoundedStorage
from swarm.transport.request_limits import PeerLimits
from tests.hostile.test_hostile_peers import against, never_answers, offer, offer_as
from tests.swarm.network_parts import (
    EPOCH_SECONDS,
    MemorySwarm,
    Node,
    identity,
    running,
    signed_record,
)

EPOCHS = 6
FLOOD = 4200


async def silent(swarm: MemorySwarm, names: list[str], about: Node) -> None:
    for name in names:
        sid = await swarm.stranger(name)
        never_answers(swarm, sid)
        await offer_as(sid, about, name, offer(name.encode().ljust(32)))


async def test_sixty_silent_keys_do_not_block_honest_frames() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    others = [await swarm.join(f"honest {n}") for n in range(5)]
    async with running(*swarm.nodes):
        for _ in range(EPOCHS):
            await silent(swarm, [f"sid {n}" for n in range(60)], anna)
            for node in others:
                node.publish()
            await swarm.clock.advance(EPOCH_SECONDS)
    assert anna.count("frames_pulled") >= 0.95 * EPOCHS * len(others)
    assert 0 < anna.count("pulls_failed{reason=deadline}") < 60 * EPOCHS


async def test_node_backs_off_silent_peer() -> None:
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    failures = []
    async with running(anna):
        await silent(swarm, ["sid"], anna)
        sid = swarm.network.members[identity("sid").peer_id]
        for epoch in range(1, 9):
            await swarm.clock.advance(EPOCH_SECONDS)
            failures.append(anna.count("pulls_failed{reason=deadline}"))
            await offer_as(sid, anna, "sid", offer(bytes([epoch]) * 32))
    assert failures[0] >= 1
    assert failures[-1] <= 6


def record(node: Node, key: Identity, *, epochs_ahead: int = 0, sequence: int = 1) -> bytes:
    epoch = node.directory.epoch + epochs_ahead
    return signed_record(node, key, offer(key.author), epoch=epoch, sequence=sequence).value


def sybils(count: int) -> list[Identity]:
    return [Identity.from_seed(b"sybil %026d" % n) for n in range(count)]


async def test_sybil_keys_do_not_displace_useful_authors(monkeypatch):
    monkeypatch.setattr("swarm.directory.MAX_KNOWN", 256)
    anna, friend = await MemorySwarm().join("anna"), identity("friend")
    anna.accounts.prove([(friend.author, 1.0)] * 8)
    for key in sybils(1000):
        anna.directory.accept(record(anna, key))
    assert anna.directory.accept(record(anna, friend)) is not None
    for key in sybils(2000)[1000:]:
        anna.directory.accept(record(anna, key))
    known = {known.author for known in anna.directory.known()}
    assert friend.author in known
    assert len(known) == 256
    assert anna.directory.useful() == {friend.author}
    assert anna.count("announcements_over_bound") == 2001 - 256


async def test_unknown_authors_are_accepted_after_a_sybil_flood(monkeypatch):
    monkeypatch.setattr("swarm.directory.MAX_KNOWN", 256)
    swarm = MemorySwarm()
    anna = await swarm.join("anna")
    for key in sybils(263):
        anna.directory.accept(record(anna, key))
    seen: set[bytes] = set()
    late = [identity(f"honest {n}") for n in range(5)]
    for epoch in range(EPOCHS):
        for key in [*sybils(263), *late]:
            anna.directory.accept(record(anna, key, sequence=epoch + 2))
        seen |= {known.author for known in anna.directory.known()}
        await swarm.clock.advance(EPOCH_SECONDS)
    assert {key.author for key in late} <= seen


async def test_gossip_lists_useful_authors_and_samples_the_others() -> None:
    _, anna, ben = await against("ben")
    friends = [identity(f"friend {n}") for n in range(5)]
    for friend in friends:
        anna.accounts.prove([(friend.author, 1.0)] * 8)
        anna.directory.accept(record(anna, friend))
    for key in sybils(1000):
        anna.directory.accept(record(anna, key))
    await anna.directory.announce([], 1, 1)

    async def gossip() -> list[bytes]:
        query = encode_gossip_request(GossipRequest(0, MAX_GOSSIP))
        peer = anna.transport.peer_id
        answer = await ben.request(peer, GOSSIP_STREAM, query, limit=1 << 20, deadline=9)
        return decode_gossip_response(answer)

    first, second = await gossip(), await gossip()
    assert {record(anna, friend) for friend in friends} <= set(first)
    assert len(first) == len(second) == MAX_GOSSIP
    assert len(set(first) & set(second)) < MAX_GOSSIP * 0.6


async def test_node_refuses_records_before_their_time_slot() -> None:
    swarm = MemorySwarm()
    anna, sybil = await swarm.join("anna"), identity("sybil")
    await swarm.clock.advance(EPOCH_SECONDS - swarm.clock.time() % EPOCH_SECONDS - 1.0)
    early = record(anna, sybil, epochs_ahead=1)
    directory, epoch = anna.directory, anna.directory.epoch + 1
    place = record_key(directory.swarm_id, epoch, 0, shard_of(sybil.author, epoch, 0))
    expiry = (epoch + 2) * EPOCH_SECONDS
    assert directory.accept(early) is None
    assert not await anna.transport.store(place, sybil.author, early, expiry)
    await swarm.clock.advance(1.0)
    assert await anna.transport.store(place, sybil.author, early, expiry)
    assert directory.accept(early) is not None
    assert anna.count("announcements_refused{reason=not_begun}") == 2


def replica(known: bytes) -> tuple[BoundedStorage, Counters]:
    counters = Counters()
    peer_limits = PeerLimits(SystemClock(), counters)
    peer_limits.reputations.use(lambda author: float(author == known))
    return BoundedStorage(DHTLocalStorage(), counters, peer_limits), counters


def test_replica_keeps_reputed_authors_and_a_random_sample() -> None:
    far, key = 4e9, DHTID.generate("shard")
    storage, counters = replica(b"ben")
    for n in range(FLOOD // 2):
        storage.store(key, b"record", far, subkey=b"early %d" % n)
    assert storage.store(key, b"record", far, subkey=b"ben")
    late = [storage.store(key, b"record", far, subkey=b"late %d" % n) for n in range(FLOOD // 2)]
    held = storage.get(key).value
    assert held.get(b"ben") is not None
    assert len(held) == MAX_SUBKEYS
    assert sum(held.get(b"late %d" % n) is not None for n in range(len(late))) / len(held) > 0.4
    assert counters.snapshot()["records_over_bound{bound=subkeys}"] > 0
    for n in range(400):
        storage.store(DHTID.generate(str(n)), b"record", far, subkey=b"sybil")
    assert storage.get(key).value.get(b"ben") is not None
    assert len(list(storage.items())) == 256


def test_storage_limits_versions_per_record() -> None:
    storage, counters = replica(b"ben")
    key = DHTID.generate("shard")
    stored = [storage.store(key, b"record", 4e9 + n, subkey=b"flo") for n in range(1000)]
    assert sum(stored) == MAX_VERSIONS + 1
    assert counters.snapshot()["records_over_bound{bound=versions}"] > 0


async def test_requests_for_missing_frames_are_rate_limited() -> None:
    swarm = MemorySwarm()
    anna, flo = await swarm.join("anna", upload_rate=1e5), await swarm.stranger("flo")
    lookups, original = [], anna.outbox.get
    anna.outbox.get = lambda content_id: lookups.append(content_id) or original(content_id)
    statuses = []
    for n in range(100):
        missing = (anna.transport.peer_id, PULL_STREAM, bytes([n]) * 32)
        statuses.append((await flo.request(*missing, limit=9, deadline=9))[0])
    assert statuses.count(PullStatus.NOT_FOUND) < 40
    assert statuses.count(PullStatus.BUSY) > 60
    assert len(lookups) < 45


SYBILS = 300
HONEST = 6
DEPTH = depth_for(SYBILS + HONEST)
MAX_READS = 12
"""Maximum DHT reads per time slot: 2 in each of 4 looks, 4 of the slot before."""


async def attacked() -> tuple[MemorySwarm, list[Node], MemoryTransport]:
    swarm = MemorySwarm()
    nodes = [await swarm.join(f"honest {n}") for n in range(HONEST)]
    return swarm, nodes, await swarm.stranger("sybil")


async def announce(sybil: MemoryTransport, node: Node, keys: list[Identity]) -> None:
    """Store an announcement of each key, at the depth for this many authors."""
    for number, key in enumerate(keys):
        depth = depth_of(key.author, node.directory.epoch, DEPTH)
        where, signed, made = signed_record(node, key, depth=depth, sequence=number + 1)
        await sybil.store(where, key.author, signed, made.expiry)


def counted(node: Node) -> list[str]:
    """Return a list that records the keys which the node reads from now on."""
    read, keys = node.transport.read, []

    async def noted(key: str) -> dict[bytes, bytes]:
        keys.append(key)
        return await read(key)

    node.transport.read = noted
    return keys


async def run_slot(swarm: MemorySwarm) -> None:
    """Let each node publish a group, and run four turns of every node."""
    for node in swarm.nodes:
        node.publish()
    await swarm.turns(4, EPOCH_SECONDS / 4)


async def test_gossip_delivers_groups_despite_sybil_announcements() -> None:
    swarm, nodes, sybil = await attacked()
    await run_slot(swarm)
    keys = [counted(node) for node in nodes]
    deepest = 0.0
    for _ in range(8):
        await announce(sybil, nodes[0], sybils(SYBILS))
        pooled = [node.count("groups_pooled") for node in nodes]
        for read in keys:
            read.clear()
        await run_slot(swarm)
        depths = [node.directory.shards.density.depth for node in nodes]
        assert sorted(map(len, keys))[HONEST // 2] <= MAX_READS
        now = [node.count("groups_pooled") for node in nodes]
        assert all(b > a for a, b in zip(pooled, now, strict=True)), "each node gets peer groups"
        deepest = max(deepest, *depths)
    assert DEPTH - 1.5 < deepest < DEPTH + 1.5, "the depth matches the number of keys"
    for _ in range(10):
        await run_slot(swarm)
    assert [node.directory.shards.density.depth for node in nodes] == [0.0] * HONEST


async def test_new_node_finds_honest_authors_among_sybils_in_one_slot() -> None:
    swarm, nodes, sybil = await attacked()
    for _ in range(6):
        await announce(sybil, nodes[0], sybils(SYBILS))
        await run_slot(swarm)
    joiner = await swarm.join("newcomer")
    await announce(sybil, nodes[0], sybils(SYBILS))
    await run_slot(swarm)
    assert joiner.authors() & {node.identity.author for node in nodes}
