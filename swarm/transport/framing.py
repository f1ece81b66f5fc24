"""How the length of a message is written before it."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import Protocol

LONGEST_VARINT = 5


class Framing(Protocol):
    """Lengths of messages on a byte stream."""

    def head(self, size: int) -> bytes:
        """What goes before a message of ``size`` bytes."""

    async def size(self, reader: asyncio.StreamReader) -> int:
        """Bytes of the next message; raises ``IncompleteReadError``, ``ValueError``."""


class U32:
    """Four bytes, big-endian: the streams of this protocol."""

    _length = Struct(">I")

    def head(self, size: int) -> bytes:
        return self._length.pack(size)

    async def size(self, reader: asyncio.StreamReader) -> int:
        (size,) = self._length.unpack(await reader.readexactly(self._length.size))
        return int(size)


class Varint:
    """An unsigned varint: the calls of the hash table and the protocols of libp2p."""

    def head(self, size: int) -> bytes:
        return varint(size)

    async def size(self, reader: asyncio.StreamReader) -> int:
        size = 0
        for place in range(LONGEST_VARINT):
            (byte,) = await reader.readexactly(1)
            size |= (byte & 127) << 7 * place
            if byte < 128:
                return size
        raise ValueError("a length that does not end")


def varint(value: int) -> bytes:
    """An unsigned varint, seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
