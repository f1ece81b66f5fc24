"""Flo sends bombs: what she sends costs the reader no more than a bounded amount of memory."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from protocol.codec import MAX_FRAME_BYTES, MAX_ITEMS
from protocol.errors import ProtocolError
from protocol.frame import open_frame
from protocol.rollout import encode_batch
from tests.protocol.refusals import peak_of, refused
from tests.protocol.samples import MANIFEST, SWARM, batch, framed_body

PLAIN = encode_batch(batch())


def zipped(plain: bytes, declared: int, **settings: object) -> bytes:
    packed = zstandard.ZstdCompressor(**settings).compress(plain)
    return framed_body(struct.pack(">BI", 1, declared) + packed)


@pytest.mark.parametrize("lie", [-1, 1, 1000])
def test_a_zstd_body_that_lies_about_its_length_is_refused(lie: int) -> None:
    refused(zipped(PLAIN, len(PLAIN) + lie), errors.BadCompression)


def test_a_zstd_body_whose_own_head_lies_too_is_refused() -> None:
    packed = bytearray(zstandard.ZstdCompressor().compress(b"ab" * 100))
    assert packed[5] == 200, "the content size stands in the sixth byte"
    packed[5] = 100
    refused(framed_body(struct.pack(">BI", 1, 100) + packed), errors.BadCompression)


def test_a_plain_body_that_lies_about_its_length_is_refused() -> None:
    refused(framed_body(struct.pack(">BI", 0, len(PLAIN) - 1) + PLAIN), errors.BadCompression)


def test_a_zstd_body_that_declares_nothing_is_refused() -> None:
    refused(zipped(PLAIN, len(PLAIN), write_content_size=False), errors.BadCompression)


def test_a_second_zstd_frame_is_refused() -> None:
    packed = zstandard.ZstdCompressor().compress(PLAIN)
    for tail in (packed, b"\0", bytes.fromhex("502a4d1800000000")):
        body = struct.pack(">BI", 1, len(PLAIN)) + packed + tail
        refused(framed_body(body), errors.BadCompression)


def test_a_skippable_zstd_frame_is_refused() -> None:
    body = struct.pack(">BI", 1, 4) + bytes.fromhex("502a4d1804000000") + b"1234"
    refused(framed_body(body), errors.BadCompression)


def test_a_zstd_window_over_eight_mebibytes_is_refused() -> None:
    """The window descriptor 0x70 asks for 16 MiB to unpack four bytes."""
    head = bytes.fromhex("28b52ffd80") + b"\x70" + struct.pack("<I", 4)
    raw_block = bytes.fromhex("210000") + b"1234"
    refused(
        framed_body(struct.pack(">BI", 1, 4) + head + raw_block), errors.BadCompression, "window"
    )
    head = head.replace(b"\x70", b"\x68")
    refused(framed_body(struct.pack(">BI", 1, 4) + head + raw_block), errors.TrailingBytes)


def test_an_unknown_compression_is_refused() -> None:
    refused(framed_body(struct.pack(">BI", 2, 4) + b"1234"), errors.BadCompression)


def test_a_body_without_its_head_is_refused() -> None:
    refused(framed_body(b"\0\0\0"), errors.Truncated, "body of 3 bytes.* 5$")


def test_a_zstd_bomb_is_refused_before_it_unpacks() -> None:
    bomb = zipped(bytes(100 << 20), 100 << 20)
    assert len(bomb) < MANIFEST.max_frame_bytes
    assert peak_of(bomb, errors.TooLarge) < 1 << 20


def test_a_zstd_bomb_that_declares_little_is_refused_before_it_unpacks() -> None:
    assert peak_of(zipped(bytes(100 << 20), 1000), errors.BadCompression) < 1 << 20


def test_a_body_of_empty_lists_costs_a_bounded_amount_of_memory() -> None:
    widest = replace(MANIFEST, max_frame_bytes=MAX_FRAME_BYTES)
    row = b"\xdd" + struct.pack(">I", 1 << 16) + b"\x90" * (1 << 16)
    plain = b"\xdc\x00\x3f" + row * 63
    assert MAX_ITEMS < 63 << 16 < len(plain) <= 4 * MAX_FRAME_BYTES
    frame = zipped(plain, len(plain))
    assert peak_of(frame, errors.TooManyItems, widest) < 24 << 20


@given(st.binary(max_size=60))
def test_arbitrary_bytes_behind_a_zstd_head_are_refused_by_name(data: bytes) -> None:
    body = struct.pack(">BI", 1, 100) + bytes.fromhex("28b52ffd") + data
    with pytest.raises(ProtocolError):
        open_frame(framed_body(body), SWARM, MANIFEST)
