"""Numbers that every node derives alike: epochs, shards, record keys and task seeds."""

from __future__ import annotations

import math
from hashlib import sha1

from protocol import domains
from protocol.codec import encode


def epoch_of(unix: float, epoch_seconds: float) -> int:
    """Number of the epoch that holds a unix time: the float64 quotient, rounded down."""
    return math.floor(unix / epoch_seconds)


def shard_of(author: bytes, epoch: int, shards: int) -> int:
    """The shard in which an author announces in an epoch; ``shards`` is a power of two."""
    return _u64(domains.digest(domains.SHARD, author, _be(epoch))) % shards


def record_key(swarm_id: bytes, epoch: int, shards: int, shard: int) -> str:
    """The DHT key of a shard's dictionary of announcements; its subkeys are authors."""
    return f"swarm-node/1/{swarm_id.hex()}/{epoch}/{shards}/{shard}"


def dht_key_of(key: str) -> bytes:
    """The 20-byte hashed key under which the DHT holds ``key``, as hivemind computes it."""
    return sha1(encode(key), usedforsecurity=False).digest()


def reader_shards(
    author: bytes, epoch: int, secret: bytes, shards: int, count: int = 2
) -> tuple[int, ...]:
    """The distinct shards a reader looks into; unpredictable without its local ``secret``."""
    drawn: dict[int, None] = {}
    draw = 0
    while len(drawn) < min(count, shards):
        number = _u64(domains.digest(domains.READER, author, _be(epoch), _be(draw), secret))
        drawn[number % shards] = None
        draw += 1
    return tuple(drawn)


def task_seed(author: bytes, epoch: int, index: int) -> int:
    """63-bit seed of an author's ``index``-th task of an epoch: derived, never chosen."""
    return _u64(domains.digest(domains.TASK, author, _be(epoch), _be(index))) >> 1


def heldout_seed(env: str, number: int) -> int:
    """63-bit seed of a held-out task, in a domain that no training task's seed comes from."""
    return _u64(domains.digest(domains.HELDOUT, _be(number), env.encode())) >> 1


def _be(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _u64(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")
