"""Numbers that every node derives alike: epochs, shards, record keys and task seeds.

The announcements of an epoch stand in shards. At depth d there are 2^d of them, and an author's is
told by the first d bits of a hash of author and epoch. Depth follows the number of authors, so that
a shard of the two depths in use holds about :data:`AUTHORS_A_SHARD` of them together.
"""

from __future__ import annotations

import math
from hashlib import sha1

from protocol.codec import MAX_DEPTH, encode
from protocol.identity import HELDOUT_DOMAIN, READER_DOMAIN, SHARD_DOMAIN, TASK_DOMAIN, domain_hash

AUTHORS_A_SHARD = 16
PATH_BITS = 64


def epoch_of(unix: float, epoch_seconds: float) -> int:
    """Number of the epoch that holds a unix time: the float64 quotient, rounded down."""
    return math.floor(unix / epoch_seconds)


def depth_for(authors: float) -> float:
    """The depth that suits a swarm of so many authors; a node uses the whole numbers around it."""
    return min(max(0.0, math.log2(max(authors, 1.0) / AUTHORS_A_SHARD)), float(MAX_DEPTH))


def depth_of(author: bytes, epoch: int, depth: float) -> int:
    """The whole depth at which an author announces in an epoch.

    Of 16 authors to whom a depth of 3.25 suits the swarm, four take depth 4 and the others 3. Which
    of them do changes every epoch.

    Args:
        depth: of :func:`depth_for`.
    """
    fraction = _u64(domain_hash(SHARD_DOMAIN, author, _be(epoch))[8:]) / 2.0**64
    return min(math.floor(depth + fraction), MAX_DEPTH)


def shard_of(author: bytes, epoch: int, depth: int) -> int:
    """The shard of a depth in which an author announces in an epoch, below 2^depth."""
    return shard_on(_u64(domain_hash(SHARD_DOMAIN, author, _be(epoch))), depth)


def shard_on(path: int, depth: int) -> int:
    """The shard of a depth that a path, 64 bits, leads through: its first ``depth`` bits."""
    return path >> (PATH_BITS - depth)


def record_key(swarm_id: bytes, epoch: int, depth: int, shard: int) -> str:
    """The DHT key of a shard's dictionary of announcements; its subkeys are authors."""
    return f"swarm-node/2/{swarm_id.hex()}/{epoch}/{depth}/{shard}"


def dht_key_of(key: str) -> bytes:
    """The 20-byte hashed key under which the DHT holds ``key``, as hivemind computes it."""
    return sha1(encode(key), usedforsecurity=False).digest()


def reader_paths(author: bytes, epoch: int, secret: bytes) -> tuple[int, int]:
    """Two paths whose shards a reader looks into, one in each half; their first bits differ.

    They are unpredictable without its local ``secret``.
    """
    digest = domain_hash(READER_DOMAIN, author, _be(epoch), secret)
    first, second = _u64(digest), _u64(digest[8:])
    half = 1 << (PATH_BITS - 1)
    return first, (second & (half - 1)) | (~first & half)


def task_seed(author: bytes, epoch: int, index: int) -> int:
    """63-bit seed of an author's ``index``-th task of an epoch: derived, never chosen."""
    return _u64(domain_hash(TASK_DOMAIN, author, _be(epoch), _be(index))) >> 1


def heldout_seed(env: str, number: int) -> int:
    """63-bit seed of a held-out task, in a domain that no training task's seed comes from."""
    return _u64(domain_hash(HELDOUT_DOMAIN, _be(number), env.encode())) >> 1


def _be(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _u64(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")
