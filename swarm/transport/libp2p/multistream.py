"""Agreeing on a protocol at the beginning of a connection, a layer or a stream.

Source: https://github.com/multiformats/multistream-select, version 1.0.0.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container

from swarm.transport.framing import varint

HEADER = "/multistream/1.0.0"
NOT_SPOKEN = "na"
MAX_LINE = 1024
MAX_PROPOSALS = 16

Read = Callable[[int], Awaitable[bytes]]
"""Exactly so many bytes; raises ``EOFError`` or ``OSError`` where they do not come."""

Write = Callable[[bytes], Awaitable[object]]


class NotSpoken(ValueError):  # noqa: N818
    """The other side does not speak the protocol, or no multistream at all."""


async def propose(read: Read, write: Write, protocol: str) -> None:
    """Ask for one protocol and wait until it is agreed on.

    Raises:
        NotSpoken
    """
    await write(proposal(protocol))
    await agreed(read, protocol)


def proposal(protocol: str) -> bytes:
    """What asks for one protocol, in one piece with the header."""
    return _line(HEADER) + _line(protocol)


async def agreed(read: Read, protocol: str) -> None:
    """Read what answers a proposal.

    Raises:
        NotSpoken
    """
    if (header := await _read_line(read)) != HEADER:
        raise NotSpoken(f"it begins with {header!r}")
    if await _read_line(read) != protocol:
        raise NotSpoken(f"it does not speak {protocol}")


async def accept(read: Read, write: Write, spoken: Container[str]) -> str:
    """The first protocol proposed that is among ``spoken``.

    Raises:
        NotSpoken
    """
    if (header := await _read_line(read)) != HEADER:
        raise NotSpoken(f"it begins with {header!r}")
    await write(_line(HEADER))
    for _ in range(MAX_PROPOSALS):
        protocol = await _read_line(read)
        if protocol in spoken:
            await write(_line(protocol))
            return protocol
        await write(_line(NOT_SPOKEN))
    raise NotSpoken(f"none of {MAX_PROPOSALS} protocols proposed is spoken here")


def _line(text: str) -> bytes:
    data = text.encode() + b"\n"
    return varint(len(data)) + data


async def _read_line(read: Read) -> str:
    size = shift = 0
    while True:
        (byte,) = await read(1)
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift > 14:
            raise NotSpoken("a line without end")
    if not 1 <= size <= MAX_LINE:
        raise NotSpoken(f"a line of {size} bytes")
    line = await read(size)
    if not line.endswith(b"\n"):
        raise NotSpoken("a line without its end")
    return line[:-1].decode(errors="replace")
