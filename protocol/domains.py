"""Domain separation: no signature or hash made for one purpose is valid for another.

The digit is the protocol's version in which the purpose came to be what it is.
"""

from __future__ import annotations

from hashlib import sha256

MANIFEST = b"swarm-node/2/manifest"
FRAME = b"swarm-node/1/frame"
ANNOUNCEMENT = b"swarm-node/2/announcement"
PROFILE = b"swarm-node/1/profile"
SWARM = b"swarm-node/1/swarm"
SHARD = b"swarm-node/2/shard"
READER = b"swarm-node/2/reader"
TASK = b"swarm-node/1/task"
HELDOUT = b"swarm-node/1/heldout"
WORK = b"swarm-node/1/work"


def separated(domain: bytes, message: bytes) -> bytes:
    """``u8 length of domain ‖ domain ‖ message``: one reading only, whatever the message is."""
    return bytes((len(domain),)) + domain + message


def digest(domain: bytes, *parts: bytes) -> bytes:
    """SHA-256 of the joined parts within a domain, 32 bytes."""
    return sha256(separated(domain, b"".join(parts))).digest()
