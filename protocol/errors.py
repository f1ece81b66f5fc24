"""Protocol errors: one class and one stable code for each reason to refuse data.

Callers count and log by ``code``, and the test vectors name it. The message is for people.
"""

# The names say what is wrong and need no suffix.
# ruff: noqa: N818

from __future__ import annotations

from typing import ClassVar


class ProtocolError(ValueError):
    """Bytes or a value that the protocol refuses; ``code`` names the reason."""

    code: ClassVar[str] = "protocol_error"


class BadMagic(ProtocolError):
    """Bytes that are not the expected kind of message."""

    code = "bad_magic"


class OtherVersion(BadMagic):
    """A message of another protocol version, ``older`` than this program's or not."""

    def __init__(self, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"it is of version {chr(found[-1])} of the protocol, and this program speaks version "
            f"{chr(expected[-1])}"
        )
        self.older = found < expected


class Truncated(ProtocolError):
    """Bytes that end before the value does."""

    code = "truncated"


class TrailingBytes(ProtocolError):
    """Bytes after the end of the value."""

    code = "trailing_bytes"


class TooLarge(ProtocolError):
    """A message, string, byte string or declared uncompressed length over its limit."""

    code = "too_large"


class TooDeep(ProtocolError):
    """Arrays and maps nested deeper than allowed."""

    code = "too_deep"


class TooManyItems(ProtocolError):
    """Too many values in one message, or too many elements in a field."""

    code = "too_many_items"


class DuplicateKey(ProtocolError):
    """A map with the same key twice."""

    code = "duplicate_key"


class BadEncoding(ProtocolError):
    """Ill-formed or non-canonical msgpack: long forms, extensions, NaN, invalid UTF-8."""

    code = "bad_encoding"


class BadCompression(ProtocolError):
    """An unknown compression method, a broken zstd frame, or a wrong declared length."""

    code = "bad_compression"


class BadSchema(ProtocolError):
    """A well-formed value with a missing, unknown, mistyped or out-of-range field."""

    code = "bad_schema"


class BadKey(ProtocolError):
    """An Ed25519 key of wrong length, not canonical, off the curve or of small order."""

    code = "bad_key"


class BadSignature(ProtocolError):
    """A signature that is not the author's over these bytes in this domain."""

    code = "bad_signature"


class WrongSwarm(ProtocolError):
    """A message that belongs to another swarm."""

    code = "wrong_swarm"


class WrongShard(ProtocolError):
    """A record in a shard, under a key or under a subkey that is not its author's."""

    code = "wrong_shard"


class Expired(ProtocolError):
    """A record whose lifetime is over."""

    code = "expired"


class BadLifetime(ProtocolError):
    """A record that lives longer than allowed, or comes from the future."""

    code = "bad_lifetime"


class NotAdmitted(ProtocolError):
    """An author that the manifest's admission rule does not admit."""

    code = "not_admitted"
