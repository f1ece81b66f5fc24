"""Requests and answers on a byte stream, as defined in ``docs/protocol.md``.

Each message is its length (a u32 by default) and its bytes. A stream that closes without an answer
is a refusal.
"""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from swarm.transport.protobuf import varint
from swarm.transport.request_limits import Service
from swarm.transport.transport import (
    HEADER_SECONDS,
    MINIMUM_RATE,
    RATE_GRACE_SECONDS,
    DeadlineExceeded,
    PeerUnreachable,
    Refused,
    ResponseTooLarge,
    TooSlow,
)

CHUNK = 1 << 16
LONGEST_VARINT = 5
REQUEST_SECONDS = 1.5  # for a complete request: one distant round trip

Read = Callable[[int], Awaitable[bytes]]  # exactly so many bytes, or ``EOFError``, ``OSError``


async def read_varint(read: Read, longest: int = LONGEST_VARINT) -> int:
    """Read a length of at most ``longest`` bytes; ``read`` returns so many bytes exactly."""
    size = 0
    for index in range(longest):
        (byte,) = await read(1)
        size |= (byte & 127) << 7 * index
        if byte < 128:
            return size
    raise ValueError("a length that does not end")


class Framing(NamedTuple):
    """How the length of a message is encoded, and read from a stream."""

    head: Callable[[int], bytes]
    size: Callable[[StreamReader], Awaitable[int]]  # or IncompleteReadError, ValueError


async def _read_u32(reader: StreamReader) -> int:
    return int.from_bytes(await reader.readexactly(4), "big")


LENGTH_U32 = Framing(lambda size: size.to_bytes(4, "big"), _read_u32)  # of this protocol
LENGTH_VARINT = Framing(varint, lambda reader: read_varint(reader.readexactly))  # of libp2p


async def ask(
    reader: StreamReader,
    writer: StreamWriter,
    payload: bytes,
    *,
    peer: str,
    limit: int,
    minimum_rate: float = MINIMUM_RATE,
    framing: Framing = LENGTH_U32,
) -> bytes:
    """Send one request on a new stream and return its answer; raise ``TransportError``."""
    started = False
    try:
        async with asyncio.timeout(HEADER_SECONDS):
            writer.write(framing.head(len(payload)) + payload)
            await writer.drain()
            size = await framing.size(reader)
        started = True
        if size > limit:
            raise ResponseTooLarge(f"peer {peer} declared {size} bytes, {limit} were agreed on")
        return await _read_at_rate(reader, size, minimum_rate, peer)
    except TimeoutError as error:
        message = f"peer {peer} did not begin to answer within {HEADER_SECONDS:g} s"
        raise DeadlineExceeded(message) from error
    except asyncio.IncompleteReadError as error:
        if not error.partial and not started:
            raise Refused(f"peer {peer} gave no answer") from error
        raise PeerUnreachable(f"the stream to peer {peer} broke: {error}") from error
    except OSError as error:
        raise PeerUnreachable(f"the stream to peer {peer} broke: {error}") from error


async def serve(
    reader: StreamReader,
    writer: StreamWriter,
    service: Service,
    peer: str,
    framing: Framing = LENGTH_U32,
) -> tuple[int, int]:
    """Answer an incoming stream's request; return payload bytes (received, sent).

    Raises ``Refusal``, ``PeerUnreachable`` or, for a slow peer, ``DeadlineExceeded``.
    """
    try:
        with service.admit(peer) as slot:
            async with asyncio.timeout(REQUEST_SECONDS) as timeout:
                slot.give_way = expire(timeout)
                size = await framing.size(reader)
                service.check_size(size)
                request = await reader.readexactly(size)
            slot.waiting = False
            answer = await service.answer(peer, request)
            # Drained means sent: the peer keeps its slot until the last byte has left.
            writer.transport.set_write_buffer_limits(high=0)
            writer.write(framing.head(len(answer)) + answer)
            service.answered(slot, len(answer))
            async with asyncio.timeout(RATE_GRACE_SECONDS + len(answer) / MINIMUM_RATE) as timeout:
                slot.give_way = expire(timeout)
                await writer.drain()
            return len(request), len(answer)
    except TimeoutError as error:
        raise DeadlineExceeded(f"peer {peer} was too slow") from error
    except (asyncio.IncompleteReadError, OSError) as error:
        raise PeerUnreachable(f"the stream from peer {peer} broke: {error}") from error


def expire(patience: asyncio.Timeout) -> Callable[[], None]:
    """Return what ends a timeout now, for the slot of a request."""
    return lambda: None if patience.expired() else patience.reschedule(0.0)


async def _read_at_rate(reader: StreamReader, size: int, minimum_rate: float, peer: str) -> bytes:
    # Each read is due when the minimum rate would have delivered one more byte.
    start = asyncio.get_running_loop().time()
    data = bytearray()
    while len(data) < size:
        deadline = start + RATE_GRACE_SECONDS + (len(data) + 1) / minimum_rate
        try:
            async with asyncio.timeout_at(deadline):
                chunk = await reader.read(min(CHUNK, size - len(data)))
        except TimeoutError as error:
            progress = f"peer {peer} sent {len(data)} of {size} bytes"
            raise TooSlow(f"{progress}, below {minimum_rate:g} bytes per second") from error
        if not chunk:
            raise asyncio.IncompleteReadError(bytes(data), size)
        data += chunk
    return bytes(data)
