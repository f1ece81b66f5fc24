"""PeerIDs, raw as messages carry them and in base58 as everybody else writes them."""

from __future__ import annotations

from protocol.identity import decode_base58, encode_base58

LONGEST_RAW = 64
LONGEST_TEXT = 96


def raw(peer: str) -> bytes:
    """The bytes of a PeerID; raises ``ValueError``."""
    found = decode_base58(peer) if len(peer) <= LONGEST_TEXT else None
    if not found:
        raise ValueError(f"{peer[:LONGEST_TEXT]!r} is no PeerID")
    return found


def text(peer: bytes) -> str:
    """A PeerID in base58; raises ``ValueError`` for more bytes than any has."""
    if not 0 < len(peer) <= LONGEST_RAW:
        raise ValueError(f"a PeerID of {len(peer)} bytes")
    return encode_base58(peer)
