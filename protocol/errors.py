"""Protocol errors: one class and one stable ``code`` per reason to refuse data."""

# The names say what is wrong and need no suffix.
# ruff: noqa: N818

from __future__ import annotations

from typing import ClassVar


class ProtocolError(ValueError):
    """Bytes or a value that the protocol refuses; ``code`` names the reason."""

    code: ClassVar[str] = "protocol_error"

    def __init_subclass__(cls, code: str = "") -> None:
        cls.code = code or cls.code


class BadMagic(ProtocolError, code="bad_magic"):
    """Bytes that are not the expected kind of message."""


class OtherVersion(BadMagic):
    """A message of another protocol version, ``older`` than this program's or not."""

    def __init__(self, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"it is of version {chr(found[-1])} of the protocol, and this program speaks version "
            f"{chr(expected[-1])}"
        )
        self.older = found < expected


class Truncated(ProtocolError, code="truncated"):
    """Bytes that end before the value does."""


class TrailingBytes(ProtocolError, code="trailing_bytes"):
    """Bytes after the end of the value."""


class TooLarge(ProtocolError, code="too_large"):
    """A message, string, byte string or declared uncompressed length over its limit."""


class TooDeep(ProtocolError, code="too_deep"):
    """Arrays and maps nested deeper than allowed."""


class TooManyItems(ProtocolError, code="too_many_items"):
    """Too many values in one message, or too many elements in a field."""


class DuplicateKey(ProtocolError, code="duplicate_key"):
    """A map with the same key twice."""


class BadEncoding(ProtocolError, code="bad_encoding"):
    """Ill-formed or non-canonical msgpack: long forms, extensions, NaN, invalid UTF-8."""


class BadCompression(ProtocolError, code="bad_compression"):
    """An unknown compression method, a broken zstd frame, or a wrong declared length."""


class BadSchema(ProtocolError, code="bad_schema"):
    """A well-formed value with a missing, unknown, mistyped or out-of-range field."""


class BadKey(ProtocolError, code="bad_key"):
    """An Ed25519 key of wrong length, not canonical, off the curve or of small order."""


class BadSignature(ProtocolError, code="bad_signature"):
    """A signature that is not the author's over these bytes in this domain."""


class WrongSwarm(ProtocolError, code="wrong_swarm"):
    """A message that belongs to another swarm."""


class WrongShard(ProtocolError, code="wrong_shard"):
    """A record in a shard, under a key or under a subkey that is not its author's."""


class Expired(ProtocolError, code="expired"):
    """A record whose lifetime is over."""


class BadLifetime(ProtocolError, code="bad_lifetime"):
    """A record that lives longer than allowed, or comes from the future."""


class NotAdmitted(ProtocolError, code="not_admitted"):
    """An author that the manifest's admission rule does not admit."""
