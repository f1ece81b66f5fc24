"""A minimal protobuf codec for libp2p messages and DHT calls, by field number.

It uses the numbers in ``docs/protocol.md`` and not those of a library's schema.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Mapping, Sequence

Field = bool | int | float | bytes
Fields = dict[int, list[Field]]  # by field number, in message order; nested messages are bytes

_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def encode(fields: Mapping[int, Field | Sequence[Field]]) -> bytes:
    """Encode a message; a sequence is a repeated field, packed if it holds numbers."""
    return b"".join(_encode(number, value) for number, value in fields.items())


def decode(data: bytes) -> Fields:
    """Decode a message, or raise ``ValueError``; packed numbers stay bytes."""
    fields, offset = defaultdict[int, list[Field]](list), 0
    while offset < len(data):
        tag, offset = varint_at(data, offset)
        number, wire_type = tag >> 3, tag & 7
        value: Field
        if wire_type == _VARINT:
            value, offset = varint_at(data, offset)
        elif wire_type == _DOUBLE:
            if len(data) < offset + 8:
                raise ValueError("a double that ends early")
            (value,), offset = struct.unpack_from("<d", data, offset), offset + 8
        elif wire_type == _BYTES:
            size, offset = varint_at(data, offset)
            value, offset = data[offset : offset + size], offset + size
            if len(value) < size:
                raise ValueError("a field ends before its length says")
        else:
            raise ValueError(f"unexpected wire type {wire_type}")
        fields[number].append(value)
    return dict(fields)


def one(fields: Fields, number: int) -> bytes:
    """Return the last value of a bytes field; empty if it is missing."""
    value = fields.get(number, [b""])[-1]
    if not isinstance(value, bytes):
        raise ValueError(f"field {number} is not bytes")
    return value


def several(fields: Fields, number: int) -> list[bytes]:
    """Return all values of a repeated bytes field."""
    values = [value for value in fields.get(number, []) if isinstance(value, bytes)]
    if len(values) != len(fields.get(number, [])):
        raise ValueError(f"field {number} is not bytes")
    return values


def doubles(values: Sequence[Field]) -> list[float]:
    """Return a repeated field's doubles, packed or not, or raise ``ValueError``."""
    result: list[float] = []
    for value in values:
        if isinstance(value, bytes):
            if len(value) % 8:
                raise ValueError("doubles that end early")
            result += struct.unpack(f"<{len(value) // 8}d", value)
        else:
            result.append(float(value))
    return result


def varints(values: Sequence[Field]) -> list[int]:
    """Return the values of a repeated bool or integer field, packed or not."""
    result: list[int] = []
    for value in values:
        if isinstance(value, bytes):
            offset = 0
            while offset < len(value):
                number, offset = varint_at(value, offset)
                result.append(number)
        else:
            result.append(int(value))
    return result


def _encode(number: int, value: Field | Sequence[Field]) -> bytes:
    if isinstance(value, bytes):
        return varint(number << 3 | _BYTES) + varint(len(value)) + value
    if isinstance(value, bool | int):
        return varint(number << 3 | _VARINT) + varint(int(value))
    if isinstance(value, float):
        return varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
    if value and isinstance(value[0], bytes):
        return b"".join(_encode(number, item) for item in value)
    data = b"".join(
        struct.pack("<d", item) if isinstance(item, float) else varint(int(item)) for item in value
    )
    return _encode(number, data) if data else b""


def varint(value: int) -> bytes:
    """Encode an unsigned varint: seven bits per byte, lowest bits first."""
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    return bytes([*encoded, value])


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint; return it and where it ends, or raise ``ValueError``."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
