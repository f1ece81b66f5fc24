"""Connections through relays (circuit relay v2) and their messages, on trio."""

from __future__ import annotations

import time

import trio

from swarm.transport.libp2p.addresses import peer_id_bytes, peer_id_text
from swarm.transport.libp2p.bridge import CHUNK, Source
from swarm.transport.libp2p.stack import Muxed, Stream, agreed, end, proposal
from swarm.transport.protobuf import Fields, decode, encode, one, varint
from swarm.transport.streams import read_varint

HOP = "/libp2p/circuit/relay/0.2.0/hop"  # spoken by relays
STOP = "/libp2p/circuit/relay/0.2.0/stop"  # spoken by relayed nodes
RESERVATION_SECONDS = 5.0
MESSAGE_BYTES = 4096
LONGEST_LENGTH = 3  # bytes of the varint before a message
LEAST_SECONDS = 60.0
MOST_SECONDS = 3600.0  # upper limit on the reservation time that a relay claims

OK, UNEXPECTED_MESSAGE = 100, 401
REFUSALS = {
    200: "the relay accepts no nodes",
    201: "the relay is full; join through another peer",
    202: "the relay does not allow it",
    203: "the relay does not reach it",
    204: "the relay does not relay for it any more; join through another peer",
}
_RESERVE, _HOP_CONNECT, _HOP_STATUS = 0, 1, 2
_STOP_CONNECT, _STOP_STATUS = 0, 1


class BufferedWire:
    """A connection for the package, which reads two bytes at a time."""

    def __init__(self, unread: bytes = b"") -> None:
        self._unread = unread

    async def read(self, n: int | None = None) -> bytes:
        """Return at most ``n`` bytes; empty at the end."""
        self._unread = self._unread or await self._receive()
        data, self._unread = self._unread[:n], self._unread[n:] if n is not None else b""
        return data

    def get_remote_address(self) -> tuple[str, int] | None:
        """Return None: the caller knows the remote address."""
        return None

    async def _receive(self) -> bytes:
        raise NotImplementedError


class Circuit(BufferedWire):
    """A stream through a relay that carries a connection as TCP does."""

    def __init__(self, stream: Stream, begun: bytes) -> None:
        super().__init__(begun)
        self._stream = stream

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def close(self) -> None:
        await self._stream.reset()

    async def _receive(self) -> bytes:
        try:
            return await self._stream.read(CHUNK)
        except ConnectionError:
            return b""


async def connected(relay: Muxed, peer: str) -> Circuit:
    """Connect to a peer through a relay; errors as for :func:`reserve_on`."""
    stream = await relay.open()
    try:
        source = await _asked(stream, connect(peer))
        relayed(await _message(source))
    except BaseException:
        await end(stream.reset)
        raise
    return Circuit(stream, source.rest)


async def reserve_on(relay: Muxed) -> float:
    """Reserve a slot; return its seconds or raise ``OSError``, ``EOFError``, ``ValueError``."""
    stream = await relay.open()
    try:
        with trio.fail_after(RESERVATION_SECONDS):
            return reservation_seconds(await _message(await _asked(stream, reserve())), time.time())
    except trio.TooSlowError:
        raise ConnectionError(f"no answer within {RESERVATION_SECONDS:g} s") from None
    finally:
        await end(stream.reset)


async def brought(stream: Stream, source: Source, *, wanted: bool) -> Circuit | None:
    """Accept or refuse (None) a forwarded connection; errors as :func:`reserve_on`."""
    taken(await _message(source))
    message = answer(OK if wanted else UNEXPECTED_MESSAGE)
    await stream.write(varint(len(message)) + message)
    return Circuit(stream, source.rest) if wanted else None


async def _asked(stream: Stream, request: bytes) -> Source:
    source = Source(stream)
    await stream.write(proposal(HOP) + varint(len(request)) + request)
    await agreed(source.read, HOP)
    return source


async def _message(source: Source) -> bytes:
    size = await read_varint(source.read, LONGEST_LENGTH)
    if size > MESSAGE_BYTES:
        raise ValueError(f"a relay's message of {size} bytes")
    return await source.read(size)


def reserve() -> bytes:
    return encode({1: _RESERVE})


def connect(peer: str) -> bytes:
    """Encode a request to connect to a peer; raises ``ValueError``."""
    return encode({1: _HOP_CONNECT, 2: encode({1: peer_id_bytes(peer)})})


def relayed(message: bytes) -> None:
    """Check the answer to :func:`connect`; raises ``ConnectionError``, ``ValueError``."""
    _check(decode(message))


def reservation_seconds(message: bytes, now: float) -> float:
    """Return the seconds that a relay grants; raise as :func:`relayed`."""
    fields = decode(message)
    _check(fields)
    expiry = _number(decode(one(fields, 3)), 1)
    return min(MOST_SECONDS, max(LEAST_SECONDS, expiry - now))


def taken(message: bytes) -> str:
    """Return the peer whose connection a relay forwards; raises ``ValueError``."""
    fields = decode(message)
    if _number(fields, 1) != _STOP_CONNECT:
        raise ValueError("a relay's message that is not CONNECT")
    return peer_id_text(one(decode(one(fields, 2)), 1))


def answer(status: int) -> bytes:
    """Encode whether this node accepts a forwarded connection."""
    return encode({1: _STOP_STATUS, 4: status})


def _check(fields: Fields) -> None:
    if _number(fields, 1) != _HOP_STATUS:
        raise ValueError("an answer of a relay without a status")
    if (status := _number(fields, 5)) != OK:
        raise ConnectionError(REFUSALS.get(status, f"the relay refuses with status {status}"))


def _number(fields: Fields, field: int) -> int:
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is not a number")
    return value
