"""Dial-back uses the requester's address and requires proof of its identity."""

import asyncio
import errno
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.virtual_clock import VirtualClock
from protocol.errors import ProtocolError
from protocol.messages import (
    DIAL_BACK_STREAM,
    MAX_PORTS,
    DialledBack,
    decode_dial_back_request,
    decode_dial_back_response,
    encode_dial_back_request,
    encode_dial_back_response,
)
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.dial_limits import DialLimits
from swarm.transport.handshake import NoPeer, who_answers
from swarm.transport.hivemind.dht import packed
from swarm.transport.hivemind.transport import HivemindTransport
from swarm.transport.node import with_port_of
from swarm.transport.reachability import PAUSE_SECONDS, DialBack
from swarm.transport.transport import (
    Refusal,
    Refused,
    describe_reach,
    dialed,
    host_of,
    links_of,
    port_of,
)
from tests.swarm.network_parts import identity
from tests.swarm.transport.over import LOOPBACK, be_patient, key_of, started

ALICE = identity("alice").peer_id


def daemon(folder: Path, name: str, *, relay: bool = False):
    return started(HivemindTransport(key_of(folder, name), listen=LOOPBACK, relay=relay))


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[tuple[int, list[int]]]:
    seen: list[int] = []

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(1)
        writer.write(answer)
        await reader.read()
        writer.close()

    server = await asyncio.start_server(on_connection, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


def handler(*addresses: str, clock: VirtualClock | None = None) -> DialBack:
    async def connections(peer: str) -> tuple[str, ...]:
        return addresses

    clock = clock or SystemClock()
    return DialBack(connections, lambda: True, clock, DialLimits(clock, Counters()))


@pytest.mark.processes
@pytest.mark.parametrize("relay", [True, False])
async def test_dial_back_reports_open_ports_and_whether_the_peer_relays(
    tmp_path: Path, relay: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``network.relay = "off"`` a daemon relays too little data for a frame."""
    be_patient(monkeypatch)
    async with daemon(tmp_path, "alice") as alice, daemon(tmp_path, "ben", relay=relay) as ben:
        await alice.connect(ben.addresses()[0])
        port = port_of(alice.addresses()[0])
        closed = 1
        request = encode_dial_back_request((port, closed))
        args = ben.peer_id, DIAL_BACK_STREAM, request
        answer = await alice.request(*args, limit=128, deadline=60.0)
        result = decode_dial_back_response(answer, (port, closed))
        assert result == DialledBack("127.0.0.1", (port,), relays=relay)
        with pytest.raises(Refused):
            await alice.request(*args, limit=128, deadline=60.0)


@pytest.mark.processes
async def test_dial_back_does_not_confirm_a_port_held_by_another_peer(tmp_path: Path):
    async with daemon(tmp_path, "alice") as alice:
        port = port_of(alice.addresses()[0])
        assert await who_answers("127.0.0.1", port, 5.0) == alice.peer_id
        mallory = identity("mallory").peer_id
        answer = await handler("/ip4/127.0.0.1/tcp/5")(mallory, encode_dial_back_request((port,)))
        assert decode_dial_back_response(answer, (port,)).open == ()


async def test_dial_back_dials_only_the_address_the_peer_connects_from() -> None:
    async with listening(b"") as (port, seen):
        await handler("/ip4/127.0.0.2/tcp/5")(ALICE, encode_dial_back_request((port,)))
        assert not seen, "the node dialed a third party's server"
        await handler("/ip4/127.0.0.1/tcp/5")(ALICE, encode_dial_back_request((port,)))
        assert seen


async def test_dial_back_refuses_a_relayed_peer() -> None:
    relayed = f"/ip4/127.0.0.1/tcp/5/p2p/{ALICE}/p2p-circuit/p2p/{ALICE}"
    with pytest.raises(Refusal, match="relayed"):
        await handler(relayed)(ALICE, encode_dial_back_request((5,)))


async def test_dial_back_is_rate_limited_per_peer(clock) -> None:
    async with listening(b"") as (port, seen):
        flo = handler("/ip4/127.0.0.1/tcp/5", clock=clock)
        for _ in range(20):
            try:
                await flo(ALICE, encode_dial_back_request((port,)))
            except Refusal as refusal:
                assert refusal.reason == "asked_too_often"
        assert len(seen) == 1
        await clock.advance(PAUSE_SECONDS)
        await flo(ALICE, encode_dial_back_request((port,)))
        assert len(seen) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\xff" * 4096,
        b"\x13/multistream/1.0.0\n\x03na\n",
        b"\x13/multistream/1.0.0\n\x07/noise\n\xff\xff" + bytes(65535),
        b"\x13/multistream/1.0.0\n\x07/noise\n\x00\x00",
        b"\x13/multistream/1.0.0\n\x07/noise\n\x00\xc8" + bytes(200),
        b"\x13/multistream/1.0.0\n\x07/noise\n\x00\xc8" + b"\x07" * 200,
    ],
)
async def test_unproven_response_is_not_a_peer(answer: bytes) -> None:
    async with listening(answer) as (port, _):
        with pytest.raises(NoPeer):
            await who_answers("127.0.0.1", port, 1.0)


async def test_failed_handshake_states_its_cause() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(NoPeer, match=f"127.0.0.1 port {port}: {os.strerror(errno.ECONNREFUSED)}$"):
        await who_answers("127.0.0.1", port, 5.0)
    async with listening(b"") as (port, _):
        with pytest.raises(NoPeer, match=r"it took too long$"):
            await who_answers("127.0.0.1", port, 0.2)
    proof = b"\x13/multistream/1.0.0\n\x07/noise\n\x00\xc8" + b"\x07" * 200
    async with listening(proof) as (port, _):
        with pytest.raises(NoPeer, match=r"it cannot be verified$"):
            await who_answers("127.0.0.1", port, 5.0)


@pytest.mark.parametrize("ports", [(), (0,), (65536,), tuple(range(1, MAX_PORTS + 2))])
def test_a_request_names_one_to_four_ports(ports: tuple[int, ...]) -> None:
    with pytest.raises(ProtocolError):
        decode_dial_back_request(encode_dial_back_request(ports))


@pytest.mark.parametrize(
    "answer",
    [
        DialledBack("example.org", (5,), True),
        DialledBack("10.0.0.1", (6,), True),
        DialledBack("10.0.0.1", (5,), 1),  # type: ignore[arg-type]
        DialledBack("1" * 65, (), True),
    ],
)
def test_response_with_unasked_ports_or_an_invalid_address_is_refused(answer):
    with pytest.raises(ProtocolError):
        decode_dial_back_response(encode_dial_back_response(answer), (5,))


@pytest.mark.parametrize("host", ["11.7.0.1", "2a00:77::2"])
def test_request_and_response_round_trip(host: str) -> None:
    ports = (1, 65535, 4001, 443)
    assert decode_dial_back_request(encode_dial_back_request(ports)) == ports
    answer = DialledBack(host, ports, relays=False)
    assert decode_dial_back_response(encode_dial_back_response(answer), ports) == answer


YES, NO = DialledBack("11.7.0.3", (4001,), True), DialledBack("11.7.0.3", (), True)
LOCAL = DialledBack("192.168.3.2", (4001,), True)
BEN, CLEO = (identity(name).peer_id for name in ("ben", "cleo"))
RELAYED = f"/ip4/11.7.0.2/tcp/4001/p2p/{BEN}/p2p-circuit/p2p/{CLEO}"


def test_majority_decides_reachability_and_outside_peers_take_precedence() -> None:
    assert dialed([YES, YES, NO])
    assert not dialed([NO, NO, YES])
    assert dialed([LOCAL])
    assert not dialed([LOCAL, LOCAL, NO]), "one peer outside the local network decides"


def test_relayed_address_yields_the_relays_host_and_port() -> None:
    links = links_of({CLEO: (RELAYED,), BEN: (RELAYED, f"/ip4/11.7.0.2/tcp/4001/p2p/{BEN}")})
    assert links == {CLEO: "relayed", BEN: "direct"}
    assert (host_of(RELAYED), port_of(RELAYED)) == ("11.7.0.2", 4001)
    assert (host_of("/dns4/example.org/tcp/5"), port_of("/unix/tmp/x")) == ("", 0)
    own = f"/ip4/192.168.3.2/tcp/40123/p2p/{CLEO}"
    assert with_port_of([RELAYED, own], ["/ip4/0.0.0.0/tcp/0"]) == ("/ip4/0.0.0.0/tcp/40123",)


def test_relayed_address_is_encoded_in_libp2p_format() -> None:
    def plain(of: str | bytes) -> SimpleNamespace:
        """Replace a multiaddress without peer ids, which the library encodes itself."""
        return SimpleNamespace(to_bytes=lambda: of if isinstance(of, bytes) else of.encode())

    raw = packed(RELAYED.rpartition("/p2p/")[0], plain).to_bytes()
    head, tail = b"/ip4/11.7.0.2/tcp/4001", b"/p2p-circuit"
    assert raw.startswith(head + b"\xa5\x03\x26\x00\x24\x08\x01\x12\x20")
    assert raw.endswith(tail)
    assert len(raw) == len(head) + 3 + 38 + len(tail)


def test_reach_reports_the_port_and_observed_address() -> None:
    reach = describe_reach("relayed", [31337], ["11.7.0.3", "11.7.0.3"], relays=2)
    seen = "no peer could dial 11.7.0.3 at TCP port 31337"
    assert reach.cause == f"{seen}; 2 of its peers relay for it"
    assert "Forward TCP port 31337" in reach.remedy
    assert describe_reach("direct", [1], ["11.7.0.3"], 0).remedy == ""
