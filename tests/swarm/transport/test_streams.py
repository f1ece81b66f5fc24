"""Requests and answers over plain sockets: framing, refusals, slow or lying peers."""

import asyncio
import os
import socket
from struct import pack

import pytest

import swarm.transport.streams as streams
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.request_limits import PeerLimits, Service
from swarm.transport.transport import (
    DeadlineExceeded,
    HandlerLimits,
    PeerUnreachable,
    Refusal,
    Refused,
    ResponseTooLarge,
    TooSlow,
)

End = tuple[asyncio.StreamReader, asyncio.StreamWriter]
TEN = pack(">I", 10)


async def pair() -> tuple[End, End]:
    left, right = socket.socketpair()
    return await asyncio.open_connection(sock=left), await asyncio.open_connection(sock=right)


async def echo(peer: str, request: bytes) -> bytes:
    return peer.encode() + request


def service(handler=echo, counters: Counters | None = None, places: int = 4) -> Service:
    counters = counters or Counters()
    limits = HandlerLimits(100_000, concurrent=places, concurrent_per_peer=places)
    return Service("echo", handler, limits, counters, PeerLimits(SystemClock(), counters))


async def ask_peer(server, request: bytes = b"hello", **options) -> bytes:
    """Return the result of :func:`streams.ask` for a server."""
    near, far = await pair()

    async def serve() -> None:
        try:
            await server(*far)
        except (Refusal, PeerUnreachable):
            return
        finally:
            far[1].close()

    serving = asyncio.ensure_future(serve())
    try:
        return await streams.ask(*near, request, peer="p", **{"limit": 1 << 20, **options})
    finally:
        near[1].close()
        await serving


def served_by(at: Service):
    return lambda reader, writer: streams.serve(reader, writer, at, "flo")


@pytest.mark.parametrize("size", [0, 1, 65_535, 65_536, 100_000])
def test_echo_request_returns_its_bytes(size: int) -> None:
    request = os.urandom(size)
    assert asyncio.run(ask_peer(served_by(service()), request)) == b"flo" + request


def test_a_request_over_the_limit_is_refused_before_it_is_read(counters) -> None:
    with pytest.raises((Refused, PeerUnreachable)):
        asyncio.run(ask_peer(served_by(service(counters=counters)), bytes(100_001)))
    assert counters.snapshot() == {"requests_refused{protocol=echo,reason=too_large}": 1.0}


def test_failed_handler_frees_its_slot_and_a_full_service_refuses() -> None:
    async def fail(peer: str, request: bytes) -> bytes:
        raise RuntimeError("a bug")

    at = service(fail, places=1)
    for _ in range(3):
        with pytest.raises(Refused):
            asyncio.run(ask_peer(served_by(at)))
    with pytest.raises((Refused, PeerUnreachable)):
        asyncio.run(ask_peer(served_by(service(places=0))))


@pytest.mark.parametrize(
    ("data", "error"),
    [
        *((data, PeerUnreachable) for data in (TEN, TEN + b"short", b"\x00\x00")),
        (pack(">I", 2**32 - 1), ResponseTooLarge),
    ],
)
def test_client_rejects_a_truncated_or_oversized_response(data, error):
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(9)
        writer.write(data)
        await writer.drain()

    with pytest.raises(error):
        asyncio.run(ask_peer(serve, limit=1000))


def test_client_aborts_a_too_slow_response(monkeypatch) -> None:
    monkeypatch.setattr(streams, "RATE_GRACE_SECONDS", 0.05)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(">I", 1000) + b"first")
        await reader.read()

    with pytest.raises(TooSlow, match="5 of 1000 bytes"):
        asyncio.run(ask_peer(drip, minimum_rate=1e4))


async def test_stream_without_a_request_frees_its_slot(monkeypatch) -> None:
    monkeypatch.setattr(streams, "REQUEST_SECONDS", 0.05)
    near, far = await pair()
    at = service(places=1)
    with pytest.raises(DeadlineExceeded):
        await streams.serve(*far, at, "flo")
    with at.admit("flo"):
        pass
    near[1].close()
    far[1].close()


@pytest.mark.parametrize("hangs_up", [False, True])
async def test_peer_is_backed_off_after_four_missing_requests(monkeypatch, hangs_up):
    monkeypatch.setattr(streams, "REQUEST_SECONDS", 60.0 if hangs_up else 0.02)
    at, outcomes = service(), []
    for _ in range(6):
        near, far = await pair()
        if hangs_up:
            near[1].close()
        try:
            await streams.serve(*far, at, "slow sam")
        except (DeadlineExceeded, PeerUnreachable, Refusal) as error:
            outcomes.append(getattr(error, "reason", type(error)))
        near[1].close()
        far[1].close()
    with at.admit("ben"):
        pass
    late = PeerUnreachable if hangs_up else DeadlineExceeded
    assert outcomes == [late] * 4 + ["backed_off"] * 2


async def test_preempted_request_counts_as_a_refusal(counters) -> None:
    at = service(places=4, counters=counters)
    opened = [await pair() for _ in range(3)]
    waiting = [asyncio.ensure_future(streams.serve(*far, at, "slow sam")) for _, far in opened]
    await asyncio.sleep(0)
    with at.admit("ben"):
        outcomes = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    (lost,) = outcomes[0]
    assert isinstance(lost.exception(), Refusal)
    assert counters.snapshot() == {"requests_refused{protocol=echo,reason=gave_way}": 1.0}
    for near, far in opened:
        near[1].close()
        far[1].close()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_client_gives_up_early_if_no_response_begins(monkeypatch):
    monkeypatch.setattr(streams, "HEADER_SECONDS", 0.05)

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1 << 16)
        await reader.read(1)

    async with asyncio.timeout(120):
        with pytest.raises(DeadlineExceeded, match="begin to answer"):
            await ask_peer(silent)


async def test_unread_response_times_out(monkeypatch) -> None:
    monkeypatch.setattr(streams, "RATE_GRACE_SECONDS", 0.05)

    async def large(peer: str, request: bytes) -> bytes:
        return bytes(8 << 20)

    monkeypatch.setattr(streams, "MINIMUM_RATE", 1e9)
    left, right = socket.socketpair()
    far = await asyncio.open_connection(sock=right)
    left.setblocking(False)
    left.sendall(pack(">I", 0))
    with pytest.raises(DeadlineExceeded):
        await streams.serve(*far, service(large), "flo")
    far[1].transport.abort()
    left.close()
