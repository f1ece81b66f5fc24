"""Encode and strictly decode canonical msgpack, and check decoded fields.

Each value has one encoding: nil, booleans, shortest integers, float64, UTF-8, bytes, arrays, maps
with string keys. Source: https://github.com/msgpack/msgpack/blob/master/spec.md.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import cast

import msgpack

from protocol.errors import (
    BadEncoding,
    BadSchema,
    DuplicateKey,
    TooDeep,
    TooLarge,
    TooManyItems,
    TrailingBytes,
    Truncated,
)

_FLOAT64 = struct.Struct(">d")


@dataclass(frozen=True, slots=True)
class CodecLimits:
    """Limits of a message; ``items`` counts keys and containers, depth 0 is a scalar."""

    bytes: int
    depth: int
    items: int
    str_len: int
    bin_len: int


def encode(value: object) -> bytes:
    """Encode plain values, dicts in their own order; raise ``BadEncoding`` for others."""
    try:
        return cast(bytes, msgpack.packb(value, use_bin_type=True, strict_types=True))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadEncoding(f"cannot encode: {error}") from error


def encode_array(elements: Sequence[bytes]) -> bytes:
    """Encode an array of elements that are encoded already."""
    header: bytes = msgpack.Packer().pack_array_header(len(elements))
    return header + b"".join(elements)


def decode(data: bytes, limits: CodecLimits) -> object:
    """Decode one canonical value; raise a ``ProtocolError`` for anything else.

    Lengths are checked first, so it allocates a small multiple of ``items`` and ``bytes`` at most.
    """
    if len(data) > limits.bytes:
        raise TooLarge(f"message of {len(data)} bytes, limit {limits.bytes}")
    reader = _Reader(data, limits)
    value = reader.value(0)
    if reader.at != len(data):
        raise TrailingBytes(f"{len(data) - reader.at} bytes after the value")
    return value


class _Reader:
    """A cursor over one message; ``left`` is the rest of the item budget."""

    __slots__ = ("at", "data", "left", "limits")

    def __init__(self, data: bytes, limits: CodecLimits) -> None:
        self.data = data
        self.at = 0
        self.left = limits.items
        self.limits = limits

    def value(self, depth: int) -> object:
        if self.left <= 0:
            raise TooManyItems(f"more than {self.limits.items} items")
        self.left -= 1
        offset = self.at
        if offset >= len(self.data):
            raise Truncated(f"message ends at byte {offset} where a value was due")
        type_byte = self.data[offset]
        self.at = offset + 1
        if type_byte < 0x80:
            return type_byte
        if type_byte < 0x90:
            return self.map(type_byte & 0x0F, depth)
        if type_byte < 0xA0:
            return self.array(type_byte & 0x0F, depth)
        if type_byte < 0xC0:
            return self.text(type_byte & 0x1F)
        if type_byte >= 0xE0:
            return type_byte - 0x100
        decoder = _READ[type_byte - 0xC0]
        if decoder is None:
            raise BadEncoding(f"type byte 0x{type_byte:02x} at byte {offset} is not in the format")
        return decoder(self, depth)

    def take(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self.data):
            raise Truncated(f"{count} bytes due at byte {self.at}, {len(self.data) - self.at} left")
        chunk = self.data[self.at : end]
        self.at = end
        return chunk

    def length(self, width: int, least: int) -> int:
        """Read a big-endian length of ``width`` bytes; reject a form that is not shortest."""
        count = int.from_bytes(self.take(width), "big")
        if count < least:
            raise BadEncoding(f"length {count} at byte {self.at} is not in its shortest form")
        return count

    def text(self, count: int) -> str:
        if count > self.limits.str_len:
            raise TooLarge(f"string of {count} bytes, limit {self.limits.str_len}")
        try:
            return self.take(count).decode()
        except UnicodeDecodeError as error:
            raise BadEncoding(f"string before byte {self.at} is not UTF-8") from error

    def blob(self, count: int) -> bytes:
        if count > self.limits.bin_len:
            raise TooLarge(f"byte string of {count} bytes, limit {self.limits.bin_len}")
        return self.take(count)

    def enter(self, items: int, depth: int) -> int:
        if depth >= self.limits.depth:
            raise TooDeep(f"nested deeper than {self.limits.depth}")
        if items > self.left:
            raise TooManyItems(f"more than {self.limits.items} items")
        if items > len(self.data) - self.at:
            raise Truncated(f"{items} items due at byte {self.at}, too few bytes left")
        return depth + 1

    def array(self, count: int, depth: int) -> list[object]:
        child_depth = self.enter(count, depth)
        value = self.value
        return [value(child_depth) for _ in range(count)]

    def map(self, count: int, depth: int) -> dict[str, object]:
        child_depth = self.enter(2 * count, depth)
        result: dict[str, object] = {}
        for _ in range(count):
            key = self.value(child_depth)
            if type(key) is not str:
                raise BadEncoding(f"map key before byte {self.at} is not a string")
            if key in result:
                raise DuplicateKey(f"key {key[:64]!r} twice in one map")
            result[key] = self.value(child_depth)
        return result

    def integer(self, width: int, *, signed: bool) -> int:
        number = int.from_bytes(self.take(width), "big", signed=signed)
        is_shortest = not _fits(number, width // 2, signed) and (number < 0) == signed
        if not is_shortest:
            raise BadEncoding(f"integer {number} before byte {self.at} is not in its shortest form")
        return number

    def float64(self) -> float:
        (number,) = _FLOAT64.unpack(self.take(8))
        if not math.isfinite(number):
            raise BadEncoding(f"float before byte {self.at} is not finite")
        return cast(float, number)


def _fits(number: int, width: int, signed: bool) -> bool:
    if width == 0:
        return -32 <= number < 128
    bits = 8 * width
    return -(1 << (bits - 1)) <= number if signed else number < (1 << bits)


_Read = Callable[[_Reader, int], object]
# By type byte from 0xc0 to 0xdf. None refuses the unused byte, extensions and float32.
_READ: tuple[_Read | None, ...] = (
    lambda r, d: None,
    None,
    lambda r, d: False,
    lambda r, d: True,
    lambda r, d: r.blob(r.length(1, 0)),
    lambda r, d: r.blob(r.length(2, 1 << 8)),
    lambda r, d: r.blob(r.length(4, 1 << 16)),
    *(None,) * 4,
    lambda r, d: r.float64(),
    lambda r, d: r.integer(1, signed=False),
    lambda r, d: r.integer(2, signed=False),
    lambda r, d: r.integer(4, signed=False),
    lambda r, d: r.integer(8, signed=False),
    lambda r, d: r.integer(1, signed=True),
    lambda r, d: r.integer(2, signed=True),
    lambda r, d: r.integer(4, signed=True),
    lambda r, d: r.integer(8, signed=True),
    *(None,) * 5,
    lambda r, d: r.text(r.length(1, 32)),
    lambda r, d: r.text(r.length(2, 1 << 8)),
    lambda r, d: r.text(r.length(4, 1 << 16)),
    lambda r, d: r.array(r.length(2, 16), d),
    lambda r, d: r.array(r.length(4, 1 << 16), d),
    lambda r, d: r.map(r.length(2, 16), d),
    lambda r, d: r.map(r.length(4, 1 << 16), d),
)


MAX_FRAME_BYTES = 1 << 20
MAX_MANIFEST_BYTES = 1 << 18
MAX_RECORD_BYTES = 1024
MAX_OFFERS = 4

MAX_DEPTH = 12  # the announcements of a time slot use at most 2**MAX_DEPTH DHT keys
PLAIN_RATIO = 4  # of a frame's uncompressed body to the manifest's ``max_frame_bytes``, at most
MAX_ITEMS = 1 << 17  # values (including keys and containers) in one frame body
MAX_GROUPS = 1024
MAX_COMPLETIONS = 1024
MAX_SEGMENTS = 64
MAX_INT = (1 << 63) - 1  # in any field: it fits a signed 64-bit word in every language


def record(value: object, names: tuple[str, ...]) -> dict[str, object]:
    """Return a map of these attributes, in this order."""
    return {name: getattr(value, name) for name in names}


def fields(value: object, names: tuple[str, ...], where: str) -> list[object]:
    """Return the values of a map that has exactly these keys in this order."""
    if type(value) is not dict or tuple(value) != names:
        raise BadSchema(f"{where}: expected a map of {', '.join(names)}, got {short(value)}")
    return list(value.values())


def items(value: object, where: str, most: int, least: int = 0) -> list[object]:
    """Return an array of ``least`` to ``most`` elements."""
    if type(value) is not list:
        raise BadSchema(f"{where}: expected an array, got {short(value)}")
    if len(value) > most:
        raise TooManyItems(f"{where}: {len(value)} elements, limit {most}")
    if len(value) < least:
        raise BadSchema(f"{where}: {len(value)} elements, at least {least} due")
    return cast(list[object], value)


def integer(value: object, where: str, low: int = 0, high: int = MAX_INT) -> int:
    """Return an integer within ``low`` and ``high``, both included."""
    if type(value) is not int or not low <= value <= high:
        raise BadSchema(f"{where}: expected an integer in [{low}, {high}], got {short(value)}")
    return value


def real(value: object, where: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Return a finite float within ``low`` and ``high``, both included."""
    if type(value) is not float or not math.isfinite(value) or not low <= value <= high:
        raise BadSchema(f"{where}: expected a float in [{low}, {high}], got {short(value)}")
    return value


def text(value: object, where: str, most: int, least: int = 0) -> str:
    """Return a string of ``least`` to ``most`` UTF-8 bytes."""
    if type(value) is not str:
        raise BadSchema(f"{where}: expected a string, got {short(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise BadSchema(f"{where}: a lone surrogate is not text") from error
    if size > most:
        raise TooLarge(f"{where}: {size} bytes of text, limit {most}")
    if size < least:
        raise BadSchema(f"{where}: {size} bytes of text, at least {least} due")
    return value


def label(value: object, where: str, most: int) -> str:
    """Return 1 to ``most`` printable ASCII characters, safe in a terminal and a log."""
    name = text(value, where, most, least=1)
    if not (name.isascii() and name.isprintable()):
        raise BadSchema(f"{where}: expected printable ASCII, got {short(value)}")
    return name


def blob(value: object, where: str, length: int) -> bytes:
    """Return a byte string of exactly ``length`` bytes."""
    if type(value) is not bytes or len(value) != length:
        raise BadSchema(f"{where}: expected {length} bytes, got {short(value)}")
    return value


def choice(value: object, where: str, among: tuple[str, ...]) -> str:
    """Return one of the strings in ``among``."""
    if type(value) is not str or value not in among:
        raise BadSchema(f"{where}: expected one of {', '.join(among)}, got {short(value)}")
    return value
