"""Connections through relays: asked of them, brought by them. All methods are trio's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swarm.transport.libp2p.addresses import peer_id_bytes, peer_id_text
from swarm.transport.libp2p.bridge import CHUNK, Source
from swarm.transport.libp2p.calls import one
from swarm.transport.libp2p.stack import agreed, end, proposal
from swarm.transport.protobuf import Fields, decode, encode
from swarm.transport.streams import varint

if TYPE_CHECKING:
    from swarm.transport.libp2p.stack import Muxed, Stream


RESERVATION_SECONDS = 5.0


class Circuit:
    """A stream through a relay, which carries a connection as a TCP connection does.

    Args:
        begun: what has been read of it already.
    """

    def __init__(self, stream: Stream, begun: bytes) -> None:
        self._stream = stream
        self._unread = begun

    async def read(self, n: int | None = None) -> bytes:
        """At most ``n`` bytes; empty at the end."""
        if not self._unread:
            try:
                self._unread = await self._stream.read(CHUNK)
            except ConnectionError:
                return b""
        data, self._unread = self._unread[:n], self._unread[n:] if n is not None else b""
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        await self._stream.write(data)

    async def close(self) -> None:
        """End both sides."""
        await self._stream.reset()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: whoever made the connection knows where it leads."""
        return None


async def connected(relay: Muxed, peer: str) -> Circuit:
    """A connection with a peer through one that relays for it.

    Raises:
        OSError, EOFError, ValueError: the relay does not connect with it.
    """
    stream = await relay.open()
    try:
        source = await _asked(stream, connect(peer))
        relayed(await _message(source))
    except BaseException:
        await end(stream.reset)
        raise
    return Circuit(stream, source.rest)


async def reserve_on(relay: Muxed) -> float:
    """Have a peer relay for this node; for how many seconds it does.

    Raises:
        OSError, EOFError, ValueError: it does not.
    """
    import trio

    stream = await relay.open()
    try:
        with trio.fail_after(RESERVATION_SECONDS):
            source = await _asked(stream, reserve())
            return reservation_seconds(await _message(source), time.time())
    except trio.TooSlowError:
        raise ConnectionError(f"no answer within {RESERVATION_SECONDS:g} s") from None
    finally:
        await end(stream.reset)


async def brought(stream: Stream, source: Source, *, wanted: bool) -> Circuit | None:
    """The connection that a relay brings on a stream; None where it is not wanted.

    Raises:
        OSError, EOFError, ValueError: the stream ended, or its message makes no sense.
    """
    taken(await _message(source))
    status = OK if wanted else UNEXPECTED_MESSAGE
    await _send(stream, answer(status))
    return Circuit(stream, source.rest) if wanted else None


async def _asked(stream: Stream, request: bytes) -> Source:
    source = Source(stream)
    await stream.write(proposal(HOP) + varint(len(request)) + request)
    await agreed(source.read, HOP)
    return source


async def _send(stream: Stream, message: bytes) -> None:
    await stream.write(varint(len(message)) + message)


async def _message(source: Source) -> bytes:
    size = shift = 0
    while True:
        (byte,) = await source.read(1)
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift > 14:
            raise ValueError("a length without end")
    if size > MESSAGE_BYTES:
        raise ValueError(f"a relay's message of {size} bytes")
    return await source.read(size)


HOP = "/libp2p/circuit/relay/0.2.0/hop"
"""Spoken by whoever relays."""

STOP = "/libp2p/circuit/relay/0.2.0/stop"
"""Spoken by whoever is relayed for."""

MESSAGE_BYTES = 4096
LEAST_SECONDS = 60.0
MOST_SECONDS = 3600.0
"""For which a relay's word that it relays is taken."""

OK, UNEXPECTED_MESSAGE = 100, 401
REFUSALS = {
    200: "the relay takes nobody",
    201: "the relay is full; join through another peer",
    202: "the relay does not allow it",
    203: "the relay does not reach it",
    204: "the relay does not relay for it any more; join through another peer",
}
_RESERVE, _HOP_CONNECT, _HOP_STATUS = 0, 1, 2
_STOP_CONNECT, _STOP_STATUS = 0, 1


def reserve() -> bytes:
    """Asks a relay to relay for the asker."""
    return encode({1: _RESERVE})


def connect(peer: str) -> bytes:
    """Asks a relay for a connection with a peer; raises ``ValueError``."""
    return encode({1: _HOP_CONNECT, 2: encode({1: peer_id_bytes(peer)})})


def relayed(message: bytes) -> None:
    """Read a relay's answer to :func:`connect`.

    Raises:
        ConnectionError: it does not connect.
        ValueError: it is no answer.
    """
    _check(decode(message))


def reservation_seconds(message: bytes, now: float) -> float:
    """Seconds for which a relay that answers :func:`reserve` relays.

    Args:
        now: unix seconds.

    Raises:
        ConnectionError: it does not.
        ValueError: it is no answer.
    """
    fields = decode(message)
    _check(fields)
    expiry = _number(decode(one(fields, 3)), 1)
    return min(MOST_SECONDS, max(LEAST_SECONDS, expiry - now))


def taken(message: bytes) -> str:
    """The peer whose connection a relay brings; raises ``ValueError`` where it brings none."""
    fields = decode(message)
    if _number(fields, 1) != _STOP_CONNECT:
        raise ValueError("a relay's message that is not CONNECT")
    return peer_id_text(one(decode(one(fields, 2)), 1))


def answer(status: int) -> bytes:
    """Tells a relay whether the connection that it brings is taken."""
    return encode({1: _STOP_STATUS, 4: status})


def _check(fields: Fields) -> None:
    if _number(fields, 1) != _HOP_STATUS:
        raise ValueError("a relay's answer that is no status")
    if (status := _number(fields, 5)) != OK:
        raise ConnectionError(REFUSALS.get(status, f"the relay refuses with status {status}"))


def _number(fields: Fields, field: int) -> int:
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value
