"""Request and answer on a byte stream, as ``docs/protocol.md`` lays them out.

A request is ``length u32 ‖ payload``; an answer is ``status u8 ‖ length u32 ‖ payload``, integers
big-endian. Status 0 carries the answer, status 1 the reason of a refusal in ASCII.
"""

from __future__ import annotations

import asyncio
from struct import Struct

from swarm.service import Service
from swarm.transport import (
    MINIMUM_RATE,
    RATE_GRACE_SECONDS,
    DeadlineExceeded,
    PeerUnreachable,
    Refusal,
    Refused,
    ResponseTooLarge,
    TooSlow,
)

ANSWERED, REFUSED = 0, 1
REASON_LIMIT = 64
CHUNK = 1 << 16
REQUEST_SECONDS = 10.0

_REQUEST = Struct(">I")
_ANSWER = Struct(">BI")


async def ask(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    payload: bytes,
    *,
    peer: str,
    limit: int,
    minimum_rate: float = MINIMUM_RATE,
) -> bytes:
    """Send one request on a fresh stream and read its answer. The caller sets the deadline.

    Raises:
        PeerUnreachable, Refused, ResponseTooLarge, TooSlow
    """
    try:
        writer.write(_REQUEST.pack(len(payload)) + payload)
        await writer.drain()
        status, size = _ANSWER.unpack(await reader.readexactly(_ANSWER.size))
        bound = limit if status == ANSWERED else REASON_LIMIT
        if size > bound:
            raise ResponseTooLarge(f"peer {peer} declared {size} bytes, {bound} were agreed on")
        answer = await _read_at_rate(reader, size, minimum_rate, peer)
    except (asyncio.IncompleteReadError, OSError) as error:
        raise PeerUnreachable(f"the stream to peer {peer} broke: {error}") from error
    if status == ANSWERED:
        return answer
    raise Refused(peer, _reason(answer))


async def serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, service: Service, peer: str
) -> tuple[int, int]:
    """Answer the one request of an incoming stream; payload bytes (received, sent).

    A peer that is slow to send its request or to take its answer loses the stream.

    Raises:
        PeerUnreachable, DeadlineExceeded
    """
    received = 0
    try:
        try:
            with service.admit(peer):
                async with asyncio.timeout(REQUEST_SECONDS):
                    (size,) = _REQUEST.unpack(await reader.readexactly(_REQUEST.size))
                    service.check_size(size)
                    request = await reader.readexactly(size)
                received = size
                answer = await service.answer(peer, request)
                await _send(writer, ANSWERED, answer)
                return received, len(answer)
        except Refusal as refusal:
            await _send(writer, REFUSED, refusal.reason.encode("ascii")[:REASON_LIMIT])
            return received, 0
    except (asyncio.IncompleteReadError, OSError) as error:
        if isinstance(error, TimeoutError):
            raise DeadlineExceeded(f"peer {peer} was too slow") from error
        raise PeerUnreachable(f"the stream from peer {peer} broke: {error}") from error


async def _send(writer: asyncio.StreamWriter, status: int, payload: bytes) -> None:
    writer.write(_ANSWER.pack(status, len(payload)) + payload)
    async with asyncio.timeout(RATE_GRACE_SECONDS + len(payload) / MINIMUM_RATE):
        await writer.drain()


async def _read_at_rate(
    reader: asyncio.StreamReader, size: int, minimum_rate: float, peer: str
) -> bytes:
    """``size`` bytes, each read due by the time the minimum rate would have brought one more."""
    started = asyncio.get_running_loop().time()
    received = bytearray()
    while len(received) < size:
        due = started + RATE_GRACE_SECONDS + (len(received) + 1) / minimum_rate
        try:
            async with asyncio.timeout_at(due):
                chunk = await reader.read(min(CHUNK, size - len(received)))
        except TimeoutError as error:
            raise TooSlow(
                f"peer {peer} sent {len(received)} of {size} bytes, "
                f"below {minimum_rate:g} bytes a second"
            ) from error
        if not chunk:
            raise asyncio.IncompleteReadError(bytes(received), size)
        received += chunk
    return bytes(received)


def _reason(answer: bytes) -> str:
    """A peer's word for its refusal, made safe to log and count: unknown shapes become one."""
    text = answer.decode("ascii", errors="replace")
    return text if text.replace("_", "").isalnum() and text.isascii() else "unspecified"
