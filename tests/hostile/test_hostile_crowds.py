"""Crowds of free keys on the network: sid is silent, sybil mints keys, slow sam never finishes."""

from __future__ import annotations

import asyncio

from protocol.announcement import Announcement, record_key, shard_of, sign_announcement
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
from swarm.common.counters import Counters
from swarm.transport.hivemind.dht import MAX_SUBKEYS, MAX_VERSIONS, BoundedStorage
from swarm.transport.request_limits import PeerLimits
from tests.hostile.test_hostile_peers import LIMITS, offer, offer_as
from tests.swarm.network_parts import EPOCH_SECONDS, MemorySwarm, Node, identity

EPOCHS = 6
FLOOD = 4200


async def never_answers(swarm: MemorySwarm, names: list[str], about: Node) -> None:
    """Peers that announce and let everybody wait."""

    async def never(peer: str, request: bytes) -> bytes:
        await swarm.clock.sleep(1e9)
        return b""

    for name in names:
        sid = await swarm.stranger(name)
        sid.handle(PULL_STREAM, never, LIMITS)
        sid.handle(GOSSIP_STREAM, never, LIMITS)
        await offer_as(sid, about, name, offer(name.encode().ljust(32)))


def test_sixty_silent_keys_do_not_keep_honest_frames_away() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna = await swarm.join("anna")
        others = [await swarm.join(f"honest {n}") for n in range(5)]
        running = [asyncio.ensure_future(node.member.run()) for node in swarm.nodes]
        names = [f"sid {n}" for n in range(60)]
        for _ in range(EPOCHS):
            await never_answers(swarm, names, anna)
            for node in others:
                node.publish()
            await swarm.clock.advance(EPOCH_SECONDS)
        pulled = anna.count("frames_pulled")
        for task in running:
            task.cancel()
        assert pulled >= 0.95 * EPOCHS * len(others)
        assert anna.count("pulls_failed{reason=deadline}") < 60 * EPOCHS

    asyncio.run(scenario())


def test_sid_is_asked_less_and_less() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna = await swarm.join("anna")
        failures = []
        running = asyncio.ensure_future(anna.member.run())
        await never_answers(swarm, ["sid"], anna)
        sid = swarm.network.members[identity("sid").peer_id]
        for epoch in range(1, 9):
            await swarm.clock.advance(EPOCH_SECONDS)
            failures.append(anna.count("pulls_failed{reason=deadline}"))
            await offer_as(sid, anna, "sid", offer(bytes([epoch]) * 32))
        running.cancel()
        assert failures[0] >= 1
        assert failures[-1] <= 6

    asyncio.run(scenario())


def record(node: Node, key: Identity, *, epochs_ahead: int = 0, sequence: int = 1) -> bytes:
    directory = node.directory
    epoch = directory.epoch + epochs_ahead
    made = Announcement(
        epoch=epoch,
        depth=0,
        shard=shard_of(key.author, epoch, 0),
        sequence=sequence,
        policy_step=1,
        expiry=(epoch + 2) * EPOCH_SECONDS,
        nonce=0,
        offers=(offer(key.author),),
    )
    return sign_announcement(made, key, directory.swarm_id)


def minted(count: int) -> list[Identity]:
    return [Identity.from_seed(b"sybil %026d" % n) for n in range(count)]


def test_keys_minted_by_the_thousand_do_not_hide_authors_known_to_be_useful(monkeypatch) -> None:
    monkeypatch.setattr("swarm.directory.MAX_KNOWN", 256)

    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, friend = await swarm.join("anna"), identity("friend")
        anna.accounts.prove([(friend.author, 1.0)] * 8)
        for key in minted(1000):
            anna.directory.accept(record(anna, key))
        assert anna.directory.accept(record(anna, friend)) is not None
        for key in minted(2000)[1000:]:
            anna.directory.accept(record(anna, key))
        known = {known.author for known in anna.directory.known()}
        assert friend.author in known
        assert len(known) == 256
        assert anna.directory.useful() == {friend.author}
        assert anna.count("announcements_over_bound") == 2001 - 256

    asyncio.run(scenario())


def test_strangers_that_come_after_a_flood_are_known_as_often_as_its_keys(monkeypatch) -> None:
    monkeypatch.setattr("swarm.directory.MAX_KNOWN", 256)

    async def scenario() -> None:
        swarm = MemorySwarm()
        anna = await swarm.join("anna")
        for key in minted(263):
            anna.directory.accept(record(anna, key))
        met: set[bytes] = set()
        late = [identity(f"honest {n}") for n in range(5)]
        for epoch in range(EPOCHS):
            for key in [*minted(263), *late]:
                anna.directory.accept(record(anna, key, sequence=epoch + 2))
            met |= {known.author for known in anna.directory.known()}
            await swarm.clock.advance(EPOCH_SECONDS)
        assert {key.author for key in late} <= met

    asyncio.run(scenario())


def test_gossip_tells_of_useful_authors_and_a_fair_sample_of_the_others() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, ben = await swarm.join("anna"), await swarm.stranger("ben")
        friends = [identity(f"friend {n}") for n in range(5)]
        for friend in friends:
            anna.accounts.prove([(friend.author, 1.0)] * 8)
            anna.directory.accept(record(anna, friend))
        for key in minted(1000):
            anna.directory.accept(record(anna, key))
        await anna.directory.announce([], 1, 1)

        async def told() -> list[bytes]:
            asked = encode_gossip_request(GossipRequest(0, MAX_GOSSIP))
            options = {"limit": 1 << 20, "deadline": 9}
            peer = anna.transport.peer_id
            return decode_gossip_response(await ben.request(peer, GOSSIP_STREAM, asked, **options))

        first, second = await told(), await told()
        useful = {record(anna, friend) for friend in friends}
        assert useful <= set(first)
        assert len(first) == len(second) == MAX_GOSSIP
        assert len(set(first) & set(second)) < MAX_GOSSIP * 0.6

    asyncio.run(scenario())


def test_no_record_is_held_or_remembered_before_its_epoch_begins() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def replica(known: bytes) -> tuple[BoundedStorage, Counters]:
    from hivemind.dht.storage import DHTLocalStorage

    from swarm.common.clock import SystemClock

    counters = Counters()
    guests = PeerLimits(SystemClock(), counters)
    guests.standings.use(lambda author: float(author == known))
    return BoundedStorage(DHTLocalStorage(), counters, guests), counters


def test_a_replica_keeps_those_of_standing_and_a_drawn_lot_of_the_rest() -> None:
    from hivemind.dht.routing import DHTID

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


def test_flo_replaces_her_record_only_so_many_times() -> None:
    from hivemind.dht.routing import DHTID

    storage, counters = replica(b"ben")
    key = DHTID.generate("shard")
    taken = [storage.store(key, b"record", 4e9 + n, subkey=b"flo") for n in range(1000)]
    assert sum(taken) == MAX_VERSIONS + 1
    assert counters.snapshot()["records_over_bound{bound=versions}"] > 0


def test_flo_pays_for_asking_for_frames_that_are_not_there() -> None:
    async def scenario() -> None:
        swarm = MemorySwarm()
        anna, flo = await swarm.join("anna", upload_rate=1e5), await swarm.stranger("flo")
        looked = []
        found = anna.outbox.get
        anna.outbox.get = lambda content_id: looked.append(content_id) or found(content_id)
        statuses = []
        for n in range(100):
            answer = await flo.request(
                anna.transport.peer_id, PULL_STREAM, bytes([n]) * 32, limit=9, deadline=9
            )
            statuses.append(answer[0])
        assert statuses.count(PullStatus.NOT_FOUND) < 40
        assert statuses.count(PullStatus.BUSY) > 60
        assert len(looked) < 45

    asyncio.run(scenario())
