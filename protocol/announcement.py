"""Announcements: signed records of at most 1 KiB with an author's offers.

Authors announce in 2^d shards of the DHT per time slot; the depth d grows with their number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1

from protocol import codec, envelope
from protocol.errors import BadLifetime, BadSchema, Expired, TooLarge, WrongShard
from protocol.frame import content_id
from protocol.identity import (
    HELDOUT_DOMAIN,
    READER_DOMAIN,
    SHARD_DOMAIN,
    TASK_DOMAIN,
    Identity,
    domain_hash,
)
from protocol.manifest import Manifest, check_admitted
from protocol.rollout import Batch

AUTHORS_A_SHARD = 16
PATH_BITS = 64


def epoch_of(unix: float, epoch_seconds: float) -> int:
    """Return the time slot of a Unix time: the float64 quotient, rounded down, at least 0."""
    return max(0, math.floor(unix / epoch_seconds))


def depth_for(authors: float) -> float:
    """Return the fractional depth for so many authors; nodes use integers around it."""
    return min(max(0.0, math.log2(max(authors, 1.0) / AUTHORS_A_SHARD)), float(codec.MAX_DEPTH))


def depth_of(author: bytes, epoch: int, depth: float) -> int:
    """Return an author's whole depth in a time slot.

    At 3.25, a quarter of the authors, drawn in every time slot, use depth 4 and the others 3.
    """
    fraction = _u64(domain_hash(SHARD_DOMAIN, author, _be(epoch))[8:]) / 2.0**64
    return min(math.floor(depth + fraction), codec.MAX_DEPTH)


def shard_of(author: bytes, epoch: int, depth: int) -> int:
    """Return the author's shard in a time slot at a depth, below 2^depth."""
    return shard_on(_u64(domain_hash(SHARD_DOMAIN, author, _be(epoch))), depth)


def shard_on(path: int, depth: int) -> int:
    """Return the shard at a depth on a 64-bit path: its first ``depth`` bits."""
    return path >> (PATH_BITS - depth)


def record_key(swarm_id: bytes, epoch: int, depth: int, shard: int) -> str:
    """Return the DHT key of a shard's announcements; its subkeys are authors."""
    return f"swarm-node/2/{swarm_id.hex()}/{epoch}/{depth}/{shard}"


def dht_key_of(key: str) -> bytes:
    """Return hivemind's 20-byte hash of ``key``, under which the DHT stores it."""
    return sha1(codec.encode(key), usedforsecurity=False).digest()


def reader_paths(author: bytes, epoch: int, secret: bytes) -> tuple[int, int]:
    """Return two paths, unpredictable without ``secret``; their first bits differ."""
    digest = domain_hash(READER_DOMAIN, author, _be(epoch), secret)
    first, second = _u64(digest), _u64(digest[8:])
    high_bit = 1 << (PATH_BITS - 1)
    return first, (second & (high_bit - 1)) | (~first & high_bit)


def task_seed(author: bytes, epoch: int, index: int) -> int:
    """Derive the 63-bit seed of an author's task sample; the author cannot choose it."""
    return _u64(domain_hash(TASK_DOMAIN, author, _be(epoch), _be(index))) >> 1


def heldout_seed(env: str, number: int) -> int:
    """Derive the 63-bit seed of a held-out task, in a domain that training never uses."""
    return _u64(domain_hash(HELDOUT_DOMAIN, _be(number), env.encode())) >> 1


def _be(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _u64(digest: bytes) -> int:
    return int.from_bytes(digest[:8], "big")


LIFETIME_EPOCHS = 3  # maximum time slots from the end of a record's own to its expiry
CLOCK_SKEW = 3.0  # seconds by which two honest clocks may differ
REMEMBERED = 1024  # opened records of 2 KiB each; a turn reads a few hundred in any swarm

_LIMITS = codec.CodecLimits(codec.MAX_RECORD_BYTES, depth=3, items=128, str_len=32, bin_len=32)
_FIELDS = ("epoch", "depth", "shard", "sequence", "policy_step", "expiry", "nonce", "offers")
_OFFER = ("content_id", "size", "groups", "env_digest", "informative")


@dataclass(frozen=True, slots=True)
class Offer:
    """One frame that its author serves."""

    content_id: bytes
    size: int
    groups: int
    env_digest: bytes  # 8 bytes, big-endian; bit ``i mod 64``: task family i of the manifest
    informative: int  # number of groups whose claimed rewards differ


@dataclass(frozen=True, slots=True)
class Announcement:
    """An author's record of one time slot."""

    epoch: int
    depth: int  # the author's choice; the time slot has 2^depth shards at this depth
    shard: int  # :func:`protocol.announcement.shard_of` author, epoch and depth
    sequence: int  # strictly increasing over an author's lifetime, shared with its frames
    policy_step: int
    expiry: float  # Unix time, seconds; also the record's expiration in the DHT
    nonce: int  # proof of work if the manifest requires it, else 0
    offers: tuple[Offer, ...]


Opener = Callable[[bytes, bytes, Manifest], tuple[bytes, Announcement]]  # as open_announcement


def offer_of(frame: bytes, batch: Batch, manifest: Manifest) -> Offer:
    """Return the offer of a frame that contains ``batch``."""
    indexes = {env.name: index for index, env in enumerate(manifest.catalogue)}
    families = 0
    for group in batch.groups:
        families |= 1 << (indexes[group.env] % 64)
    return Offer(
        content_id=content_id(frame),
        size=len(frame),
        groups=len(batch.groups),
        env_digest=families.to_bytes(8, "big"),
        informative=sum(len(set(group.rewards)) > 1 for group in batch.groups),
    )


def sign_announcement(announcement: Announcement, identity: Identity, swarm_id: bytes) -> bytes:
    """Sign the announcement into an envelope of at most 1 KiB, the record's value."""
    body = codec.encode(_to_wire(announcement))
    _from_wire(codec.decode(body, _LIMITS))
    return envelope.close(envelope.ANNOUNCEMENT, swarm_id, identity, body)


def open_announcement(
    data: bytes, swarm_id: bytes, manifest: Manifest
) -> tuple[bytes, Announcement]:
    """Return author and announcement, with everything checked except the clock.

    Checks in the order size, magic, swarm, key, signature, encoding, schema, shard, lifetime, the
    manifest's limits, admission. Results are cached, because replicas return the same records.
    """
    return _opened(bytes(data), swarm_id, manifest)


@lru_cache(REMEMBERED)
def _opened(data: bytes, swarm_id: bytes, manifest: Manifest) -> tuple[bytes, Announcement]:
    author, body = envelope.open_envelope(
        envelope.ANNOUNCEMENT, data, swarm_id, codec.MAX_RECORD_BYTES
    )
    announcement = _from_wire(codec.decode(body, _LIMITS))
    if announcement.shard != shard_of(author, announcement.epoch, announcement.depth):
        location = f"shard {announcement.shard} of depth {announcement.depth}"
        raise WrongShard(f"{location} is not the author's in this epoch")
    start = announcement.epoch * manifest.epoch_seconds
    end = (announcement.epoch + 1 + LIFETIME_EPOCHS) * manifest.epoch_seconds
    if not start < announcement.expiry <= end:
        raise BadLifetime(f"expiry {announcement.expiry} is not in ({start}, {end}]")
    for offer in announcement.offers:
        if offer.size > manifest.max_frame_bytes:
            raise TooLarge(f"frame of {offer.size} bytes, limit {manifest.max_frame_bytes}")
    check_admitted(manifest.admission, swarm_id, author, announcement.nonce)
    return author, announcement


def check_clock(announcement: Announcement, manifest: Manifest, now: float) -> None:
    """Check an opened announcement against ``now`` (Unix seconds).

    Raises ``Expired``, or ``BadLifetime`` if its time slot has not begun or it expires more than
    three time slots from now.
    """
    if announcement.expiry <= now:
        raise Expired(f"expired {now - announcement.expiry:.1f} s ago")
    if announcement.epoch * manifest.epoch_seconds > now + CLOCK_SKEW:
        raise BadLifetime(f"epoch {announcement.epoch} has not begun")
    if announcement.expiry > now + LIFETIME_EPOCHS * manifest.epoch_seconds + CLOCK_SKEW:
        raise BadLifetime(f"lives {announcement.expiry - now:.1f} s on, over three epochs")


def check_record(
    key: bytes,
    subkey: bytes,
    value: bytes,
    expiry: float,
    now: float,
    swarm_id: bytes,
    manifest: Manifest,
    opener: Opener = open_announcement,
) -> tuple[bytes, Announcement]:
    """Check a record as a DHT validator does before it stores or returns it.

    ``key`` is hashed by :func:`dht_key_of`, ``subkey`` is the author's public key. ``expiry`` must
    equal the signed one, or any peer could prolong the record.
    """
    author, announcement = opener(value, swarm_id, manifest)
    if subkey != author:
        raise WrongShard("the record stands under another author's subkey")
    plain_key = record_key(swarm_id, announcement.epoch, announcement.depth, announcement.shard)
    if key != dht_key_of(plain_key):
        raise WrongShard("the record stands under another key than its epoch, depth and shard give")
    if expiry != announcement.expiry:
        raise BadLifetime(f"stored until {expiry}, signed until {announcement.expiry}")
    check_clock(announcement, manifest, now)
    return author, announcement


def _to_wire(announcement: Announcement) -> dict[str, object]:
    offers = [codec.record(offer, _OFFER) for offer in announcement.offers]
    overrides = {"expiry": float(announcement.expiry), "offers": offers}
    return codec.record(announcement, _FIELDS) | overrides


def _from_wire(wire: object) -> Announcement:
    epoch, depth, shard, sequence, step, expiry, nonce, offers = codec.fields(
        wire, _FIELDS, "announcement"
    )
    entries = tuple(map(_offer, codec.items(offers, "offers", codec.MAX_OFFERS)))
    if len({offer.content_id for offer in entries}) < len(entries):
        raise BadSchema("offers: one frame twice")
    return Announcement(
        epoch=codec.integer(epoch, "epoch"),
        depth=codec.integer(depth, "depth", 0, codec.MAX_DEPTH),
        shard=codec.integer(shard, "shard"),
        sequence=codec.integer(sequence, "sequence"),
        policy_step=codec.integer(step, "policy_step"),
        expiry=codec.real(expiry, "expiry", 0.0),
        nonce=codec.integer(nonce, "nonce"),
        offers=entries,
    )


def _offer(wire: object) -> Offer:
    frame_id, size, groups, env_digest, informative = codec.fields(wire, _OFFER, "offer")
    count = codec.integer(groups, "groups", 1, codec.MAX_GROUPS)
    return Offer(
        content_id=codec.blob(frame_id, "content_id", 32),
        size=codec.integer(size, "size", 1, codec.MAX_FRAME_BYTES),
        groups=count,
        env_digest=codec.blob(env_digest, "env_digest", 8),
        informative=codec.integer(informative, "informative", 0, count),
    )
