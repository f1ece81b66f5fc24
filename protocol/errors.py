"""Everything that can be wrong with bytes from outside, one class and one stable code each.

Callers count and log by ``code``; the test vectors name it; the message is for people.
"""

# The names say what is wrong and need no suffix.
# ruff: noqa: N818

from __future__ import annotations

from typing import ClassVar


class ProtocolError(ValueError):
    """Bytes, or a value to be sent, that the protocol refuses.

    Attributes:
        code: stable snake_case name of the reason.
    """

    code: ClassVar[str] = "protocol_error"


class BadMagic(ProtocolError):
    """The bytes are not the kind of message that was expected."""

    code = "bad_magic"


class OtherVersion(BadMagic):
    """The message is of another version of the protocol.

    Attributes:
        older: than the one spoken here.
    """

    def __init__(self, expected: bytes, found: bytes) -> None:
        super().__init__(
            f"it is of version {chr(found[-1])} of the protocol, and this program speaks version "
            f"{chr(expected[-1])}"
        )
        self.older = found < expected


class Truncated(ProtocolError):
    """The bytes end before the value does."""

    code = "truncated"


class TrailingBytes(ProtocolError):
    """Bytes follow the end of the value."""

    code = "trailing_bytes"


class TooLarge(ProtocolError):
    """A message, string, byte string or declared plain length is over its limit."""

    code = "too_large"


class TooDeep(ProtocolError):
    """Arrays and maps are nested deeper than allowed."""

    code = "too_deep"


class TooManyItems(ProtocolError):
    """More values in one message than allowed, or more elements than a field takes."""

    code = "too_many_items"


class DuplicateKey(ProtocolError):
    """A map names one key twice."""

    code = "duplicate_key"


class BadEncoding(ProtocolError):
    """Ill-formed or non-canonical msgpack: long forms, extensions, NaN, text that is not UTF-8."""

    code = "bad_encoding"


class BadCompression(ProtocolError):
    """An unknown compression, a broken zstd frame, or one that lies about its length."""

    code = "bad_compression"


class BadSchema(ProtocolError):
    """Well-formed, but a field is missing, unknown, of another type or out of range."""

    code = "bad_schema"


class BadKey(ProtocolError):
    """Not a usable Ed25519 public key: wrong length, non-canonical, off the curve, small order."""

    code = "bad_key"


class BadSignature(ProtocolError):
    """The signature is not the author's over these bytes in this domain."""

    code = "bad_signature"


class WrongSwarm(ProtocolError):
    """The message belongs to another swarm."""

    code = "wrong_swarm"


class WrongShard(ProtocolError):
    """A record stands in a shard, under a key or under a subkey that is not its author's."""

    code = "wrong_shard"


class Expired(ProtocolError):
    """The record's time is over."""

    code = "expired"


class BadLifetime(ProtocolError):
    """The record claims to live longer than allowed, or comes from the future."""

    code = "bad_lifetime"


class NotAdmitted(ProtocolError):
    """The manifest's admission rule does not let this author in."""

    code = "not_admitted"
