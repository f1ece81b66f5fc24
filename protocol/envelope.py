"""The signed envelope around every message, and compression of frame bodies.

``magic (8) ‖ swarm id (32) ‖ author (32) ‖ signature (64) ‖ body``. The signature covers the swarm
id and the body's SHA-256 in the domain of the message kind, and is verified before parsing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from hashlib import sha256

import zstandard

from protocol.errors import BadCompression, BadMagic, OtherVersion, TooLarge, Truncated, WrongSwarm
from protocol.identity import (
    ANNOUNCEMENT_DOMAIN,
    FRAME_DOMAIN,
    MANIFEST_DOMAIN,
    PROFILE_DOMAIN,
    Identity,
    verify,
)

HEAD_BYTES = 8 + 32 + 32 + 64
NO_SWARM = bytes(32)  # swarm id field of a manifest, which exists before its swarm


@dataclass(frozen=True, slots=True)
class EnvelopeKind:
    """A kind of message: its first eight bytes and its signature domain."""

    magic: bytes
    domain: bytes


MANIFEST = EnvelopeKind(b"SWARMAN2", MANIFEST_DOMAIN)
FRAME = EnvelopeKind(b"SWARFRM1", FRAME_DOMAIN)
ANNOUNCEMENT = EnvelopeKind(b"SWARANN2", ANNOUNCEMENT_DOMAIN)
PROFILE = EnvelopeKind(b"SWARPRF1", PROFILE_DOMAIN)


def close(kind: EnvelopeKind, swarm_id: bytes, identity: Identity, body: bytes) -> bytes:
    """Sign ``body`` and wrap it in an envelope."""
    signature = identity.sign(kind.domain, swarm_id + sha256(body).digest())
    return kind.magic + swarm_id + identity.author + signature + body


def open_envelope(
    kind: EnvelopeKind, data: bytes, swarm_id: bytes, most: int
) -> tuple[bytes, bytes]:
    """Return author and body of an envelope after verifying its signature.

    Checks in the order size, magic, head, swarm, key, signature; raises ``ProtocolError``.
    """
    if len(data) > most:
        raise TooLarge(f"message of {len(data)} bytes, limit {most}")
    author, signature, body = parts(kind, data, swarm_id)
    verify(author, kind.domain, swarm_id + sha256(body).digest(), signature)
    return author, body


def parts(kind: EnvelopeKind, data: bytes, swarm_id: bytes) -> tuple[bytes, bytes, bytes]:
    """Return author, signature and body without verifying the signature."""
    if data[:8] != kind.magic[: len(data)]:
        if _is_of_other_version(kind, data[:8]):
            raise OtherVersion(kind.magic, data[:8])
        raise BadMagic(f"expected {kind.magic!r}, got {data[:8]!r}")
    if len(data) < HEAD_BYTES:
        raise Truncated(f"{len(data)} bytes, the head alone takes {HEAD_BYTES}")
    if data[8:40] != swarm_id:
        raise WrongSwarm(f"message of swarm {data[8:40].hex()}, expected {swarm_id.hex()}")
    return data[40:72], data[72:HEAD_BYTES], data[HEAD_BYTES:]


def of_this_version(kind: EnvelopeKind, data: bytes) -> bytes:
    """Replace the magic by that of ``kind`` if only its version differs."""
    return kind.magic + data[8:] if _is_of_other_version(kind, data[:8]) else data


def _is_of_other_version(kind: EnvelopeKind, magic: bytes) -> bool:
    return magic != kind.magic and magic[:7] == kind.magic[:7] and magic[7:].isdigit()


_HEAD = struct.Struct(">BI")
COMPRESSED_HEAD_BYTES = _HEAD.size
_PLAIN, _ZSTD = 0, 1
_ZSTD_MAGIC = bytes.fromhex("28b52ffd")
_LEVEL = 3
_MAX_WINDOW = 8 << 20  # RFC 8878 recommends that every decoder supports windows up to this size


def compress_body(plain: bytes, *, compress: bool) -> bytes:
    """Return the body, compressed if ``compress`` is set and the result is shorter."""
    if compress:
        compressed = zstandard.ZstdCompressor(level=_LEVEL).compress(plain)
        if len(compressed) < len(plain):
            return _HEAD.pack(_ZSTD, len(plain)) + compressed
    return _HEAD.pack(_PLAIN, len(plain)) + plain


def decompress_body(body: bytes, most: int) -> bytes:
    """Return at most ``most`` bytes; raise ``Truncated``, ``TooLarge``, ``BadCompression``."""
    if len(body) < COMPRESSED_HEAD_BYTES:
        raise Truncated(f"body of {len(body)} bytes, its head alone takes {COMPRESSED_HEAD_BYTES}")
    method, length = _HEAD.unpack_from(body)
    if length > most:
        raise TooLarge(f"plain body of {length} bytes declared, limit {most}")
    payload = body[COMPRESSED_HEAD_BYTES:]
    if method == _PLAIN:
        if len(payload) != length:
            raise BadCompression(f"{length} bytes declared, {len(payload)} there")
        return payload
    if method != _ZSTD:
        raise BadCompression(f"unknown compression method {method}")
    return _decompress(payload, length)


def _decompress(compressed: bytes, length: int) -> bytes:
    if not compressed.startswith(_ZSTD_MAGIC):
        raise BadCompression("not a zstd frame")
    try:
        params = zstandard.get_frame_parameters(compressed)
        if params.content_size != length or params.dict_id:
            expected = f"{length} bytes without dictionary"
            raise BadCompression(f"the zstd frame does not declare {expected}")
        if params.window_size > _MAX_WINDOW:
            raise BadCompression(f"zstd window of {params.window_size} bytes")
        return zstandard.ZstdDecompressor().decompress(
            compressed, max_output_size=length, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise BadCompression(f"zstd: {error}") from error
