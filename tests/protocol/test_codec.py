"""Each value has one encoding; other input is refused by name in bounded memory."""

import struct
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import CodecLimits, decode, encode
from protocol.errors import BadEncoding, ProtocolError, TooDeep, TooManyItems, Truncated
from tests.protocol.strategies import values

ROOMY = CodecLimits(bytes=1 << 20, depth=64, items=1 << 16, str_len=1 << 16, bin_len=1 << 16)


@given(values)
def test_encoded_value_round_trips(value: object) -> None:
    assert decode(encode(value), ROOMY) == value


def refused_or_canonical(data: bytes) -> None:
    try:
        value = decode(data, ROOMY)
    except ProtocolError:
        return
    assert encode(value) == data


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_canonical_or_refused(data):
    refused_or_canonical(data)


@given(values, st.data())
def test_corrupt_encoding_is_canonical_or_refused(value, data):
    encoded = bytearray(encode(value))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    refused_or_canonical(bytes(encoded))


@given(values, st.data())
def test_truncated_message_is_refused(value: object, data: st.DataObject) -> None:
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(ProtocolError):
        decode(encoded[:cut], ROOMY)


@pytest.mark.parametrize("opening", [b"\x91", b"\x81\xa1a"])
def test_decoder_refuses_deep_nesting(opening: bytes) -> None:
    with pytest.raises(TooDeep):
        decode(opening * 100_000 + b"\xc0", ROOMY)


def test_items_count_keys_and_containers() -> None:
    value = {"a": [1, 2]}
    assert decode(encode(value), CodecLimits(100, 9, 5, 9, 9)) == value
    with pytest.raises(TooManyItems):
        decode(encode(value), CodecLimits(100, 9, 4, 9, 9))


@pytest.mark.parametrize("head", ["dd", "df", "db", "c6"])
def test_length_beyond_the_message_is_refused(head: str) -> None:
    vast = CodecLimits(1 << 20, 9, 1 << 40, 1 << 40, 1 << 40)
    with pytest.raises(Truncated):
        decode(bytes.fromhex(head) + struct.pack(">I", (1 << 32) - 1), vast)


def array(count: int, item: bytes) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + item * count


EMPTY = (b"\x90", b"\x80", b"\xa0", b"\xcb" + bytes(8))
ROWS = b"\xdc\x01\x00" + (b"\xdc\x10\x00" + b"\x90" * 4096) * 256


@pytest.mark.parametrize(
    ("bomb", "items", "most"),
    [*((array(1 << 20, item), 1 << 12, 1 << 20) for item in EMPTY), (ROWS, 1 << 13, 2 << 20)],
    ids=["lists", "maps", "strings", "floats", "lists of allowed length"],
)
def test_decoder_stops_item_bomb_at_the_item_limit(bomb: bytes, items: int, most: int) -> None:
    tracemalloc.start()
    with pytest.raises(TooManyItems):
        decode(bomb, CodecLimits(len(bomb), 9, items, 9, 9))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < most


@pytest.mark.parametrize("value", [1 << 64, -(1 << 63) - 1, "\ud800", {1, 2}, object(), (1, 2)])
def test_encode_rejects_unsupported_values(value: object) -> None:
    with pytest.raises(BadEncoding):
        encode(value)
