"""Connections through relays: asked of them, brought by them. All methods are trio's."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swarm.transport.framing import varint
from swarm.transport.libp2p import circuit
from swarm.transport.libp2p.bridge import CHUNK
from swarm.transport.libp2p.endings import end
from swarm.transport.libp2p.multistream import agreed, proposal
from swarm.transport.libp2p.proposed import Source

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
        source = await _asked(stream, circuit.connect(peer))
        circuit.relayed(await _message(source))
    except BaseException:
        await end(stream.reset)
        raise
    return Circuit(stream, source.rest)


async def reserved(relay: Muxed) -> float:
    """Have a peer relay for this node; for how many seconds it does.

    Raises:
        OSError, EOFError, ValueError: it does not.
    """
    import trio

    stream = await relay.open()
    try:
        with trio.fail_after(RESERVATION_SECONDS):
            source = await _asked(stream, circuit.reserve())
            return circuit.reserved(await _message(source), time.time())
    except trio.TooSlowError:
        raise ConnectionError(f"no answer within {RESERVATION_SECONDS:g} s") from None
    finally:
        await end(stream.reset)


async def brought(stream: Stream, source: Source, *, wanted: bool) -> Circuit | None:
    """The connection that a relay brings on a stream; None where it is not wanted.

    Raises:
        OSError, EOFError, ValueError: the stream ended, or its message makes no sense.
    """
    circuit.taken(await _message(source))
    status = circuit.OK if wanted else circuit.UNEXPECTED_MESSAGE
    await _send(stream, circuit.answer(status))
    return Circuit(stream, source.rest) if wanted else None


async def _asked(stream: Stream, request: bytes) -> Source:
    source = Source(stream)
    await stream.write(proposal(circuit.HOP) + varint(len(request)) + request)
    await agreed(source.read, circuit.HOP)
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
    if size > circuit.MESSAGE_BYTES:
        raise ValueError(f"a relay's message of {size} bytes")
    return await source.read(size)
