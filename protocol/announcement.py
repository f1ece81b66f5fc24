"""An announcement: what one author offers in one epoch, a signed record of at most 1 KiB."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha1

from protocol import codec, envelope
from protocol.codec import (
    MAX_DEPTH,
    MAX_FRAME_BYTES,
    MAX_GROUPS,
    MAX_OFFERS,
    MAX_RECORD_BYTES,
    Limits,
    decode,
    encode,
)
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


LIFETIME_EPOCHS = 3
"""A record ends at most this many epochs after the end of its own."""

CLOCK_SKEW = 3.0
"""Seconds by which two honest clocks may differ."""

REMEMBERED = 1024
"""Records that need not be opened again; each takes 2 KiB with what was read from it. A turn meets
those of two shards in two epochs and one answer of gossip, a few hundred in a swarm of any size."""

_LIMITS = Limits(MAX_RECORD_BYTES, depth=3, items=128, str_len=32, bin_len=32)

_FIELDS = ("epoch", "depth", "shard", "sequence", "policy_step", "expiry", "nonce", "offers")
_OFFER = ("content_id", "size", "groups", "env_digest", "informative")


@dataclass(frozen=True, slots=True)
class Offer:
    """One frame that its author serves.

    Attributes:
        content_id: SHA-256 of the frame.
        size: bytes of the frame.
        groups: how many it holds.
        env_digest: 8 bytes, big-endian; bit ``i mod 64`` set for each family, ``i`` its place in
            the manifest's catalogue.
        informative: groups whose claimed rewards differ.
    """

    content_id: bytes
    size: int
    groups: int
    env_digest: bytes
    informative: int


@dataclass(frozen=True, slots=True)
class Announcement:
    """An author's record of one epoch.

    Attributes:
        epoch: in which it was announced.
        depth: how many times the shards of the epoch are halved, as its author finds fitting.
        shard: :func:`protocol.announcement.shard_of` author, epoch and depth.
        sequence: strictly increasing over an author's life, announcements and frames together.
        policy_step: the author's policy version.
        expiry: unix time, seconds; also the record's expiration in the DHT.
        nonce: proof of work where the manifest asks for it, else 0.
        offers: at most four.
    """

    epoch: int
    depth: int
    shard: int
    sequence: int
    policy_step: int
    expiry: float
    nonce: int
    offers: tuple[Offer, ...]


Opener = Callable[[bytes, bytes, Manifest], tuple[bytes, Announcement]]
"""(record, swarm id, manifest) -> author and announcement, as :func:`open_announcement`."""


def offer_of(frame: bytes, batch: Batch, manifest: Manifest) -> Offer:
    """The offer of a frame that ``batch`` was sealed into."""
    places = {env.name: place for place, env in enumerate(manifest.catalogue)}
    families = 0
    for group in batch.groups:
        families |= 1 << (places[group.env] % 64)
    return Offer(
        content_id=content_id(frame),
        size=len(frame),
        groups=len(batch.groups),
        env_digest=families.to_bytes(8, "big"),
        informative=sum(len(set(group.rewards)) > 1 for group in batch.groups),
    )


def sign_announcement(announcement: Announcement, identity: Identity, swarm_id: bytes) -> bytes:
    """The record's value: a signed envelope of at most 1 KiB.

    Raises:
        ProtocolError: a field is out of range.
    """
    body = encode(_to_wire(announcement))
    _from_wire(decode(body, _LIMITS))
    return envelope.close(envelope.ANNOUNCEMENT, swarm_id, identity, body)


def open_announcement(
    data: bytes, swarm_id: bytes, manifest: Manifest
) -> tuple[bytes, Announcement]:
    """Author and announcement, everything checked but the clock.

    What opened lately is remembered, for a node meets the same record in every replica and turn.

    Raises:
        ProtocolError: in the order size, magic, swarm, key, signature, encoding, schema, shard,
            lifetime, the manifest's limits, admission.
    """
    return _opened(bytes(data), swarm_id, manifest)


@lru_cache(REMEMBERED)
def _opened(data: bytes, swarm_id: bytes, manifest: Manifest) -> tuple[bytes, Announcement]:
    author, body = envelope.open_envelope(envelope.ANNOUNCEMENT, data, swarm_id, MAX_RECORD_BYTES)
    announcement = _from_wire(decode(body, _LIMITS))
    if announcement.shard != shard_of(author, announcement.epoch, announcement.depth):
        raise WrongShard(
            f"shard {announcement.shard} of depth {announcement.depth} is not the author's in this "
            "epoch"
        )
    begin = announcement.epoch * manifest.epoch_seconds
    end = (announcement.epoch + 1 + LIFETIME_EPOCHS) * manifest.epoch_seconds
    if not begin < announcement.expiry <= end:
        raise BadLifetime(f"expiry {announcement.expiry} is not in ({begin}, {end}]")
    for offer in announcement.offers:
        if offer.size > manifest.max_frame_bytes:
            raise TooLarge(f"frame of {offer.size} bytes, limit {manifest.max_frame_bytes}")
    check_admitted(manifest.admission, swarm_id, author, announcement.nonce)
    return author, announcement


def check_clock(announcement: Announcement, manifest: Manifest, now: float) -> None:
    """Returns if an opened announcement is of ``now`` (unix seconds).

    Raises:
        Expired: its time is over.
        BadLifetime: its epoch has not begun, or it lives longer than three epochs from now.
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
    """All that a DHT validator asks of a record before it stores or returns it.

    Args:
        key: hashed, as the DHT holds it (:func:`protocol.announcement.dht_key_of`).
        subkey: the author's public key, 32 bytes.
        value: the signed announcement.
        expiry: the record's expiration; must be the signed one, or anybody could prolong it.
        now: unix seconds.
        opener: :func:`open_announcement`, or what remembers its results.

    Raises:
        ProtocolError
    """
    author, announcement = opener(value, swarm_id, manifest)
    if subkey != author:
        raise WrongShard("the record stands under another author's subkey")
    where = record_key(swarm_id, announcement.epoch, announcement.depth, announcement.shard)
    if key != dht_key_of(where):
        raise WrongShard("the record stands under another key than its epoch, depth and shard give")
    if expiry != announcement.expiry:
        raise BadLifetime(f"stored until {expiry}, signed until {announcement.expiry}")
    check_clock(announcement, manifest, now)
    return author, announcement


def _to_wire(announcement: Announcement) -> dict[str, object]:
    offers = [
        {
            "content_id": offer.content_id,
            "size": offer.size,
            "groups": offer.groups,
            "env_digest": offer.env_digest,
            "informative": offer.informative,
        }
        for offer in announcement.offers
    ]
    return {
        "epoch": announcement.epoch,
        "depth": announcement.depth,
        "shard": announcement.shard,
        "sequence": announcement.sequence,
        "policy_step": announcement.policy_step,
        "expiry": float(announcement.expiry),
        "nonce": announcement.nonce,
        "offers": offers,
    }


def _from_wire(wire: object) -> Announcement:
    epoch, depth, shard, sequence, step, expiry, nonce, offers = codec.fields(
        wire, _FIELDS, "announcement"
    )
    entries = tuple(map(_offer, codec.items(offers, "offers", MAX_OFFERS)))
    if len({offer.content_id for offer in entries}) < len(entries):
        raise BadSchema("offers: one frame twice")
    return Announcement(
        epoch=codec.integer(epoch, "epoch"),
        depth=codec.integer(depth, "depth", 0, MAX_DEPTH),
        shard=codec.integer(shard, "shard"),
        sequence=codec.integer(sequence, "sequence"),
        policy_step=codec.integer(step, "policy_step"),
        expiry=codec.real(expiry, "expiry", 0.0),
        nonce=codec.integer(nonce, "nonce"),
        offers=entries,
    )


def _offer(wire: object) -> Offer:
    frame, size, groups, env_digest, informative = codec.fields(wire, _OFFER, "offer")
    count = codec.integer(groups, "groups", 1, MAX_GROUPS)
    return Offer(
        content_id=codec.blob(frame, "content_id", 32),
        size=codec.integer(size, "size", 1, MAX_FRAME_BYTES),
        groups=count,
        env_digest=codec.blob(env_digest, "env_digest", 8),
        informative=codec.integer(informative, "informative", 0, count),
    )
