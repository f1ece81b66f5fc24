"""Limits of a libp2p host for peers that break the rules of a connection."""

import asyncio
import socket
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path

import pytest

from protocol.messages import (
    DIAL_BACK_STREAM,
    DialledBack,
    decode_dial_back_response,
    encode_dial_back_request,
)
from swarm.transport.dial_limits import MOST_DIALS
from swarm.transport.libp2p.addresses import peer_id_bytes, place_of
from swarm.transport.libp2p.host import MAX_CONNECTIONS, MAX_HALF_OPEN, MAX_OF_PEER
from swarm.transport.libp2p.introductions import ROUTING, question
from swarm.transport.libp2p.node import Libp2pTransport
from swarm.transport.libp2p.stack import HEADER, MAX_FRAME, MAX_STREAMS, MAX_UNREAD
from swarm.transport.protobuf import decode
from swarm.transport.streams import LENGTH_VARINT, ask
from swarm.transport.transport import HandlerLimits
from tests.swarm.transport.mallory import (
    DATA,
    DEAF,
    SYN,
    WINDOW,
    Mallory,
    against_anna,
    frame,
    line,
)
from tests.swarm.transport.over import ECHO, LOOPBACK, be_patient, key_of, started, until
from tests.swarm.transport.third_party import (
    HOST,
    OneMinute,
    claim,
    refused,
    start_again,
    third_party,
)

pytestmark = [pytest.mark.processes, pytest.mark.alone("libp2p")]

OVER = "connections_over_bound{bound=over_bounds}"


async def test_excess_unread_data_closes_connection(tmp_path, counters) -> None:
    async with against_anna(tmp_path, counters) as (anna, ben, thread):
        await ben.connect(anna.addresses()[0])

        async def deaf(peer: str, reader: object, writer: object) -> None:
            await asyncio.sleep(1e6)

        await anna.node.add_handler(DEAF, deaf)
        begun = line(HEADER) + line(DEAF)
        frames = [frame(DATA, SYN, 1, len(begun), begun)]
        frames += [frame(DATA, 0, 1, MAX_FRAME, bytes(MAX_FRAME))] * (MAX_UNREAD // MAX_FRAME + 4)
        await thread.call(Mallory(anna.addresses()[0]).write_until_it_ends, frames)
    assert counters.snapshot()[OVER] == 1


async def test_oversized_frame_closes_the_connection(tmp_path: Path) -> None:
    async with against_anna(tmp_path) as (anna, ben, thread):
        await ben.connect(anna.addresses()[0])
        frames = [frame(WINDOW, SYN, 1, 0), frame(DATA, 0, 1, 1 << 31)]
        await thread.call(Mallory(anna.addresses()[0]).write_until_it_ends, frames)


async def test_too_many_streams_close_the_connection(tmp_path, counters) -> None:
    async with against_anna(tmp_path, counters) as (anna, ben, thread):
        await ben.connect(anna.addresses()[0])
        # One packet opens the streams faster than the host can drop silent ones.
        frames = [frame(WINDOW, SYN, 2 * n + 1, 0) for n in range(2 * MAX_STREAMS)]
        await thread.call(Mallory(anna.addresses()[0]).write_until_it_ends, [b"".join(frames)])
    assert counters.snapshot()[OVER] == 1


async def test_node_limits_half_open_connections(tmp_path, counters) -> None:
    async with against_anna(tmp_path, counters) as (anna, ben, _):
        place = place_of(anna.addresses()[0])
        with ExitStack() as stack:
            for _ in range(3 * MAX_HALF_OPEN):
                flo = stack.enter_context(closing(socket.socket()))
                flo.bind(("127.0.0.2", 0))
                flo.connect((place.host, place.port))
            # A peer at another address can still connect.
            await ben.connect(anna.addresses()[0])
    half_open = counters.snapshot()["connections_over_bound{bound=half_open}"]
    assert half_open >= MAX_HALF_OPEN


async def test_node_limits_connections_per_peer(tmp_path, counters) -> None:
    async with against_anna(tmp_path, counters) as (anna, ben, thread):
        await ben.connect(anna.addresses()[0])
        flo = Mallory(anna.addresses()[0])
        held = [await thread.call(flo.dial) for _ in range(3 * MAX_OF_PEER)]
        await until(lambda: flo.identity.peer_id in anna.peers())
        assert len(held) == 3 * MAX_OF_PEER
    assert counters.snapshot()["connections_over_bound{bound=of_peer}"] == 2 * MAX_OF_PEER
    assert MAX_OF_PEER < MAX_CONNECTIONS


async def test_peer_that_reads_nothing_is_replaced_immediately(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("swarm.transport.libp2p.host.MAX_CONNECTIONS", 1)
    monkeypatch.setattr("swarm.transport.libp2p.stack.WRITE_SECONDS", 1e6)
    begun = line(HEADER) + line(DEAF)
    async with against_anna(tmp_path) as (anna, ben, thread):
        served = 0

        async def pour(peer: str, reader: object, writer: asyncio.StreamWriter) -> None:
            nonlocal served
            served += 1
            writer.write(bytes(1 << 18))
            await asyncio.sleep(1e6)

        await anna.node.add_handler(DEAF, pour)
        flo = Mallory(anna.addresses()[0])
        secure = await thread.call(flo.dial)
        frames = [frame(DATA, SYN, 2 * n + 1, len(begun), begun) for n in range(256)]
        await thread.call(secure.write, b"".join(frames))
        await until(lambda: served)
        try:
            await ben.connect(anna.addresses()[0])
            await until(lambda: anna.peers() == (ben.peer_id,))
        finally:
            await thread.call(flo.break_off)


async def test_node_drops_unknown_protocols(tmp_path: Path) -> None:
    async with against_anna(tmp_path) as (anna, ben, _):
        place = place_of(anna.addresses()[0])
        for payload in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), line(HEADER) + line("/tls/1.0.0")):
            with closing(socket.create_connection((place.host, place.port))) as client:
                client.sendall(payload)
        await ben.connect(anna.addresses()[0])
        await until(lambda: anna.peers() == (ben.peer_id,), 30.0)


async def test_unfinished_introductions_leave_slots_for_others(tmp_path, counters):
    async with against_anna(tmp_path, counters) as (anna, ben, _):
        key = key_of(tmp_path, "sam")
        async with started(Libp2pTransport(key, listen=LOOPBACK)) as sam:
            await sam.connect(anna.addresses()[0])
            begun = [await sam.node.open_stream(anna.peer_id, ROUTING) for _ in range(100)]
            for _, writer in begun:
                writer.write(b"\x10")
            await ben.connect(anna.addresses()[0])
            asked = question(peer_id_bytes(sam.peer_id))
            reader, writer = await ben.node.open_stream(anna.peer_id, ROUTING)
            answer = await ask(reader, writer, asked, peer="", limit=9999, framing=LENGTH_VARINT)
            assert decode(answer)
    assert counters.snapshot()["introductions_refused"] > 0


async def test_node_does_not_dial_a_falsely_claimed_address(tmp_path, monkeypatch):
    be_patient(monkeypatch)
    annas, mallorys = (key_of(tmp_path, name) for name in ("anna", "mallory"))
    async with third_party() as ((port, *_), seen), AsyncExitStack() as stack:
        anna = await stack.enter_async_context(started(Libp2pTransport(annas, listen=LOOPBACK)))
        claiming = Libp2pTransport(mallorys, listen=LOOPBACK, announce=(f"/ip4/{HOST}/tcp/{port}",))
        mallory = await stack.enter_async_context(started(claiming))
        await mallory.connect(anna.addresses()[0])
        async with asyncio.timeout(120):
            while HOST not in str(await anna.node.connected()):
                await asyncio.sleep(0.05)
        request = encode_dial_back_request((port,))
        asked = mallory.request(anna.peer_id, DIAL_BACK_STREAM, request, limit=128, deadline=60)
        result = decode_dial_back_response(await asked, (port,))
        assert result == DialledBack("127.0.0.1", (), False)
        assert not seen, "the node dialed a third party's server"


async def test_five_keys_claiming_one_host_trigger_only_four_dials(tmp_path):
    cache = tmp_path / "peers"
    args = {"listen": LOOPBACK, "peer_cache": cache, "clock": OneMinute()}
    async with third_party() as (ports, seen):
        anna = Libp2pTransport(key_of(tmp_path, "anna"), **args)
        await anna.start()
        keys = await claim(Libp2pTransport, tmp_path, anna, ports)
        assert not seen, "the node dialed claims of another host by itself"
        for key in keys:
            assert await refused(anna, key)
        assert len(seen) == MOST_DIALS
        await anna.close()
        await start_again(Libp2pTransport, tmp_path, cache)
        assert len(seen) == MOST_DIALS, "a restart dials no claimed address"


async def test_eight_peers_on_one_host_connect_within_a_minute(tmp_path, monkeypatch):
    be_patient(monkeypatch)

    async def echo(peer: str, request: bytes) -> bytes:
        return request

    args = {"listen": LOOPBACK, "clock": OneMinute()}
    nodes = [Libp2pTransport(key_of(tmp_path, f"node {n}"), **args) for n in range(8)]
    try:
        for node in nodes:
            node.handle(ECHO, echo, HandlerLimits(8, 64, 8))
            await node.start()
        for node in nodes[1:]:
            await node.connect(nodes[0].addresses()[0])
        await until(lambda: len(nodes[0].peers()) == 7)
        for node in nodes:
            others = [each.peer_id for each in nodes if each is not node]
            asked = (node.request(peer, ECHO, b"hi", limit=8, deadline=60) for peer in others)
            assert await asyncio.gather(*asked) == [b"hi"] * 7
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
