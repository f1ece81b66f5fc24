"""A frame's body: how it is compressed, how long it is when plain, and the bytes.

``u8 method (0 plain, 1 zstd) ‖ u32 big-endian plain length ‖ bytes``. A zstd body (RFC 8878) is one
frame that declares the same length and needs no dictionary; nothing is decompressed before both
declarations are checked.
"""

from __future__ import annotations

import struct

import zstandard

from protocol.errors import BadCompression, TooLarge, Truncated

_HEAD = struct.Struct(">BI")
HEAD_BYTES = _HEAD.size
_PLAIN, _ZSTD = 0, 1
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_LEVEL = 3
# What RFC 8878 asks of every decoder.
_MAX_WINDOW = 8 << 20


def pack(plain: bytes, *, compress: bool) -> bytes:
    """The body, compressed if asked to and shorter so."""
    if compress:
        squeezed = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
        if len(squeezed) < len(plain):
            return _HEAD.pack(_ZSTD, len(plain)) + squeezed
    return _HEAD.pack(_PLAIN, len(plain)) + plain


def unpack(body: bytes, most: int) -> bytes:
    """The plain bytes, at most ``most``.

    Raises:
        Truncated, TooLarge, BadCompression
    """
    if len(body) < HEAD_BYTES:
        raise Truncated(f"body of {len(body)} bytes, its head alone takes {HEAD_BYTES}")
    method, length = _HEAD.unpack_from(body)
    if length > most:
        raise TooLarge(f"plain body of {length} bytes declared, limit {most}")
    packed = body[HEAD_BYTES:]
    if method == _PLAIN:
        if len(packed) != length:
            raise BadCompression(f"{length} bytes declared, {len(packed)} there")
        return packed
    if method != _ZSTD:
        raise BadCompression(f"unknown compression method {method}")
    return _decompress(packed, length, most)


def _decompress(packed: bytes, length: int, most: int) -> bytes:
    if not packed.startswith(_ZSTD_MAGIC):
        raise BadCompression("not a zstd frame")
    try:
        frame = zstandard.get_frame_parameters(packed)
        if frame.content_size != length or frame.dict_id:
            raise BadCompression(
                f"the zstd frame does not declare {length} bytes without dictionary"
            )
        if frame.window_size > _MAX_WINDOW:
            raise BadCompression(f"zstd window of {frame.window_size} bytes")
        return zstandard.ZstdDecompressor().decompress(
            packed, max_output_size=length, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BadCompression(f"zstd: {error}") from error
