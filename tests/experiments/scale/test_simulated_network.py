"""Simulated network, DHT, accounts and journals keep the contracts of real ones."""

import random

import pytest

from experiments.scale.dht import REPLICAS, RecordTable, dht_id_of, get_cost, nearest, store_cost
from experiments.scale.network import ScaleNetwork, ScaleTransport, SteppedClock, TrafficKind
from experiments.scale.node import MemoryAccounts, MemoryJournal
from protocol.announcement import dht_key_of
from protocol.messages import GOSSIP_STREAM, PULL_STREAM
from swarm.journal import MEMORY, Journal
from swarm.reputation import Accounts
from swarm.transport.transport import (
    HandlerLimits,
    PeerUnreachable,
    RecordTooLarge,
    RecordView,
    Refusal,
    Refused,
    ResponseTooLarge,
)

NOW = 1000.0
LIMITS = HandlerLimits(64, 4, 4)


async def network_of(
    count: int, *, connections: int = 32, loss: float = 0.0
) -> tuple[ScaleNetwork, list[ScaleTransport]]:
    network = ScaleNetwork(SteppedClock(NOW), 0, connections, loss)
    peers = [ScaleTransport(network, f"peer {number}") for number in range(count)]
    for peer in peers:
        peer.use_validator(lambda record: True)
        await peer.start()
    return network, peers


async def echo(peer: str, request: bytes) -> bytes:
    return request + peer.encode()


async def test_request_is_answered_and_counted_by_both_peers() -> None:
    _, (alice, bob) = await network_of(2)
    bob.handle(PULL_STREAM, echo, LIMITS)
    answer = await alice.request(bob.peer_id, PULL_STREAM, b"1234", limit=64, deadline=1.0)
    assert answer == b"1234peer 0"
    assert alice.traffic.rpcs[TrafficKind.FRAMES] == 1
    assert alice.traffic.request_bytes[TrafficKind.FRAMES] == bob.traffic.served_bytes == 14
    assert (alice.bytes_out, alice.bytes_in) == (4, 10) == (bob.bytes_in, bob.bytes_out)


async def test_transport_raises_the_standard_errors() -> None:
    network, (alice, bob, carol) = await network_of(3)

    async def refuse(peer: str, request: bytes) -> bytes:
        raise Refusal("busy")

    bob.handle(GOSSIP_STREAM, refuse, LIMITS)
    bob.handle(PULL_STREAM, echo, LIMITS)
    with pytest.raises(Refused):
        await alice.request(bob.peer_id, GOSSIP_STREAM, b"", limit=64, deadline=1.0)
    with pytest.raises(ResponseTooLarge):
        await alice.request(bob.peer_id, PULL_STREAM, b"1234", limit=3, deadline=1.0)
    with pytest.raises(RecordTooLarge):
        await alice.store("key", b"a", bytes(2000), NOW + 1)
    network.cut([bob])
    with pytest.raises(PeerUnreachable):
        await alice.request(bob.peer_id, PULL_STREAM, b"1234", limit=64, deadline=1.0)
    assert alice.peers() == (carol.peer_id,)
    network.heal()
    await bob.close()
    with pytest.raises(PeerUnreachable):
        await alice.request(bob.peer_id, PULL_STREAM, b"1234", limit=64, deadline=1.0)


async def test_record_round_trip_costs_match_the_model() -> None:
    network, peers = await network_of(40)
    assert await peers[0].store("key", b"author", b"x" * 100, NOW + 5)
    stored = store_cost(40, 100)
    assert peers[0].traffic.rpcs[TrafficKind.TABLE] == stored.rpcs
    network.begin(NOW + 1)
    assert await peers[1].read("key") == {b"author": b"x" * 100}
    found, search = get_cost(40, 100), get_cost(40, 0)
    assert peers[1].traffic.request_bytes[TrafficKind.TABLE] == found.bytes_out + found.bytes_in
    served = sum(peer.traffic.served_bytes for peer in peers)
    assert served == pytest.approx(found.bytes_in - search.bytes_in)
    assert network.routing[0] == search.bytes_out + search.bytes_in
    assert network.busiest_key() == (1, 1)


async def test_peer_refuses_records_that_its_validator_rejects() -> None:
    _, peers = await network_of(8)
    requests: list[RecordView] = []
    for peer in peers:
        peer.use_validator(lambda record: bool(requests.append(record)))
    assert not await peers[0].store("key", b"author", b"value", NOW + 5)
    assert await peers[1].read("key") == {}
    assert requests == [RecordView(dht_key_of("key"), b"author", b"value", NOW + 5)]


async def test_peer_keeps_its_connection_count_as_others_leave() -> None:
    _, peers = await network_of(30, connections=4)
    before = peers[0].peers()
    assert len(set(before)) == 4 and peers[0].peer_id not in before
    gone = [peer for peer in peers if peer.peer_id in before[:2]]
    for peer in gone:
        await peer.close()
    after = peers[0].peers()
    assert len(after) == 4 and not {peer.peer_id for peer in gone} & set(after)
    assert set(before[2:]) < set(after)


async def test_network_drops_messages_at_configured_rate() -> None:
    _, (alice, bob) = await network_of(2, loss=0.25)
    bob.handle(PULL_STREAM, echo, LIMITS)
    lost = 0
    for _ in range(400):
        try:
            await alice.request(bob.peer_id, PULL_STREAM, b"", limit=64, deadline=1.0)
        except PeerUnreachable:
            lost += 1
    assert 60 < lost < 140


async def test_stepped_clock_never_moves_back_or_sleeps() -> None:
    clock = SteppedClock(NOW)
    clock.move_to(NOW - 1)
    assert clock.time() == clock.monotonic() == NOW
    await clock.sleep(0)
    with pytest.raises(RuntimeError, match="cannot wait"):
        await clock.sleep(1)


KEY = bytes(20)


def table_of(count: int) -> tuple[RecordTable, list[int]]:
    table, ids = RecordTable(), [dht_id_of(f"peer {number}") for number in range(count)]
    for dht_id in ids:
        table.join(dht_id)
    return table, ids


def put(table: RecordTable, side: int, subkey: bytes, value: bytes, expiry: float) -> bool:
    records = table.records(side, KEY, NOW)
    return table.put(records, subkey, value, expiry, frozenset(records.ids))


def test_nearest_matches_an_exhaustive_search() -> None:
    draw = random.Random(1)
    for count in (0, 1, 3, 5, 6, 200):
        ids = sorted(draw.getrandbits(160) for _ in range(count))
        key = draw.getrandbits(160)
        expected = sorted(ids, key=lambda dht_id: dht_id ^ key)[:REPLICAS]
        assert nearest(ids, key) == tuple(expected)


def test_only_a_later_expiry_replaces_a_record() -> None:
    table, _ = table_of(8)
    assert put(table, 0, b"a", b"first", NOW + 10)
    assert not put(table, 0, b"a", b"earlier", NOW + 10)
    assert put(table, 0, b"a", b"later", NOW + 11)
    records = table.records(0, KEY, NOW)
    assert (records.found, records.size) == ({b"a": b"later"}, 5)


def test_expired_records_and_keys_are_removed() -> None:
    table, _ = table_of(8)
    put(table, 0, b"a", b"short", NOW + 1)
    put(table, 0, b"b", b"long", NOW + 5)
    records = table.records(0, KEY, NOW + 1)
    assert (records.found, records.size) == ({b"b": b"long"}, 4)
    table.expire(NOW + 4)
    assert table.max_records() == 1
    table.expire(NOW + 5)
    assert table.max_records() == 0


def test_record_is_lost_with_its_last_holder() -> None:
    table, _ = table_of(12)
    put(table, 0, b"a", b"value", NOW + 10)
    holders = table.records(0, KEY, NOW).ids
    for dht_id in holders[:-1]:
        table.leave(dht_id)
    assert table.records(0, KEY, NOW).found == {b"a": b"value"}
    table.leave(holders[-1])
    assert table.records(0, KEY, NOW).found == {}
    assert set(table.records(0, KEY, NOW).ids).isdisjoint(holders)


def test_only_reached_nodes_hold_a_record() -> None:
    table, _ = table_of(12)
    records = table.records(0, KEY, NOW)
    table.put(records, b"a", b"value", NOW + 10, frozenset(records.ids[:2]))
    assert table.values_at(records, records.ids[1:]) == {b"a": b"value"}
    assert table.values_at(records, records.ids[2:]) == {}


def test_partition_writes_diverge_and_heal_keeps_the_later_expiry() -> None:
    table, ids = table_of(20)
    put(table, 0, b"old", b"before", NOW + 10)
    table.cut(set(ids[:10]))
    assert (table.size(0), table.size(1)) == (10, 10)
    put(table, 0, b"a", b"here", NOW + 20)
    put(table, 1, b"a", b"there", NOW + 30)
    assert table.records(0, KEY, NOW).found[b"a"] == b"here"
    assert table.records(1, KEY, NOW).found[b"a"] == b"there"
    table.heal()
    assert table.size(0) == 20
    assert table.records(0, KEY, NOW).entries[b"a"].value == b"there"
    assert table.records(0, KEY, NOW).entries[b"old"].value == b"before"


ALICE, LARRY, ABSENT = b"a" * 32, b"l" * 32, b"n" * 32


def test_memory_accounts_match_journal_accounts() -> None:
    clock = SteppedClock(1_700_000_000.0)
    journal = Journal(MEMORY, clock)
    durable, memory = Accounts(journal, clock), MemoryAccounts(journal, clock)
    for accounts in (durable, memory):
        accounts.admit(ALICE, 2)
        accounts.charge(ALICE, 0.5)
        accounts.prove([(ALICE, 1.0)] * 5)
        accounts.prove([(LARRY, 1.0)])
        accounts.refuse(LARRY, "bad_signature")
        accounts.refuse(ALICE, "replay", 3)
    clock.move_to(clock.time() + 60)
    for author in (ALICE, LARRY, ABSENT):
        assert memory.banned(author) == durable.banned(author) == (author == LARRY)
        assert memory.reputation(author) == durable.reputation(author)
        one, other = memory.get(author), durable.get(author)
        assert one.admitted == other.admitted
        assert (one.seconds, one.refused) == (other.seconds, other.refused)
    assert memory.proven() == durable.proven() == {ALICE}
    assert memory.reputations() == durable.reputations()
    assert memory.tried() == durable.tried()
    assert [account.author for account in memory.snapshot()] == [ALICE, LARRY]


def test_memory_journal_assigns_the_same_numbers() -> None:
    clock = SteppedClock(1_700_000_000.0)
    for journal in (Journal(MEMORY, clock), MemoryJournal(clock), MemoryJournal(clock)):
        assert [journal.next_sequence() for _ in range(2)] == [1_700_000_000_000, 1_700_000_000_001]
        assert journal.next_indexes(7, 2, 3) == range(2)
        assert journal.next_indexes(7, 2, 3) == range(2, 3)
        assert journal.restored_at is None
        journal.close()
