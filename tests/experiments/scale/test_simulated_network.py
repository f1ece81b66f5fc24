"""The network of a simulated swarm keeps the transport's contract and its books."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import wraps

import pytest

from experiments.scale.clock import SteppedClock
from experiments.scale.network import SimulatedNetwork, SimulatedTransport
from experiments.scale.table_cost import get_cost, store_cost
from experiments.scale.tally import Kind
from protocol.announcement import dht_key_of
from protocol.messages import GOSSIP_STREAM, PULL_STREAM
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


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        asyncio.run(test())

    return run


async def network_of(
    count: int, *, connections: int = 32, loss: float = 0.0
) -> tuple[SimulatedNetwork, list[SimulatedTransport]]:
    network = SimulatedNetwork(SteppedClock(NOW), 0, connections, loss)
    peers = [SimulatedTransport(network, f"peer {number}") for number in range(count)]
    for peer in peers:
        peer.use_validator(lambda record: True)
        await peer.start()
    return network, peers


async def echo(peer: str, request: bytes) -> bytes:
    return request + peer.encode()


@on_a_loop
async def test_a_request_is_answered_and_stands_in_the_books_of_both() -> None:
    _, (alice, bob) = await network_of(2)
    bob.handle(PULL_STREAM, echo, LIMITS)
    answer = await alice.request(bob.peer_id, PULL_STREAM, b"1234", limit=64, deadline=1.0)
    assert answer == b"1234peer 0"
    assert alice.tally.rpcs[Kind.FRAMES] == 1
    assert alice.tally.asked[Kind.FRAMES] == bob.tally.served == 14
    assert (alice.bytes_out, alice.bytes_in) == (4, 10) == (bob.bytes_in, bob.bytes_out)


@on_a_loop
async def test_what_goes_wrong_is_told_as_by_every_transport() -> None:
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


@on_a_loop
async def test_a_record_comes_back_and_costs_what_the_table_says() -> None:
    network, peers = await network_of(40)
    assert await peers[0].store("key", b"author", b"x" * 100, NOW + 5)
    stored = store_cost(40, 100)
    assert peers[0].tally.rpcs[Kind.TABLE] == stored.rpcs
    network.begin(NOW + 1)
    assert await peers[1].read("key") == {b"author": b"x" * 100}
    found, search = get_cost(40, 100), get_cost(40, 0)
    assert peers[1].tally.asked[Kind.TABLE] == found.bytes_out + found.bytes_in
    served = sum(peer.tally.served for peer in peers)
    assert served == pytest.approx(found.bytes_in - search.bytes_in)
    assert network.routing[0] == search.bytes_out + search.bytes_in
    assert network.busiest_key() == (1, 1)


@on_a_loop
async def test_a_holder_refuses_what_its_rule_does_not_let_pass() -> None:
    _, peers = await network_of(8)
    asked: list[RecordView] = []
    for peer in peers:
        peer.use_validator(lambda record: bool(asked.append(record)))
    assert not await peers[0].store("key", b"author", b"value", NOW + 5)
    assert await peers[1].read("key") == {}
    assert asked == [RecordView(dht_key_of("key"), b"author", b"value", NOW + 5)]


@on_a_loop
async def test_a_peer_is_connected_with_so_many_others_and_finds_new_ones_when_they_leave() -> None:
    _, peers = await network_of(30, connections=4)
    before = peers[0].peers()
    assert len(set(before)) == 4 and peers[0].peer_id not in before
    gone = [peer for peer in peers if peer.peer_id in before[:2]]
    for peer in gone:
        await peer.close()
    after = peers[0].peers()
    assert len(after) == 4 and not {peer.peer_id for peer in gone} & set(after)
    assert set(before[2:]) < set(after)


@on_a_loop
async def test_of_many_messages_as_many_are_lost_as_is_said() -> None:
    _, (alice, bob) = await network_of(2, loss=0.25)
    bob.handle(PULL_STREAM, echo, LIMITS)
    lost = 0
    for _ in range(400):
        try:
            await alice.request(bob.peer_id, PULL_STREAM, b"", limit=64, deadline=1.0)
        except PeerUnreachable:
            lost += 1
    assert 60 < lost < 140


def test_nobody_waits_on_a_clock_that_others_move() -> None:
    clock = SteppedClock(NOW)
    clock.move_to(NOW - 1)
    assert clock.time() == clock.monotonic() == NOW
    asyncio.run(clock.sleep(0))
    with pytest.raises(RuntimeError, match="nobody waits"):
        asyncio.run(clock.sleep(1))
