"""Announcements and stream messages as they should be, and wrong ones with their error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protocol import envelope
from protocol.announcement import (
    Announcement,
    Offer,
    dht_key_of,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.codec import CodecLimits, decode, encode
from protocol.messages import MAX_GOSSIP
from tests.protocol.samples import (
    ALICE,
    EPOCH,
    FRAME,
    MALLORY,
    NOW,
    OTHER_SWARM,
    SWARM,
    announcement,
    record,
)

FULL = tuple(Offer(bytes([n]) * 32, 4096, 1024, bytes([n] * 8), n) for n in range(4))
SIGNED = sign_announcement(announcement(), ALICE, SWARM)
EXPIRY = announcement().expiry


def signed(**changes: object) -> bytes:
    return sign_announcement(announcement(**changes), ALICE, SWARM)


def bent(change: Callable[[dict], object]) -> bytes:
    """An announcement that mallory signed properly around a changed body."""
    wire = decode(SIGNED[envelope.HEAD_BYTES :], CodecLimits(1024, 9, 200, 99, 99))
    change(wire)
    return record(wire, MALLORY)


def bent_offer(**fields: object) -> bytes:
    return bent(lambda wire: wire["offers"][0].update(fields))


def key_of(made: Announcement) -> bytes:
    return dht_key_of(record_key(SWARM, made.epoch, made.depth, made.shard))


VALID = {
    "one offer": SIGNED,
    "no offer": signed(offers=()),
    "four offers": signed(offers=FULL),
    "depth 0": signed(depth=0, shard=0),
    "depth 12": signed(depth=12, shard=shard_of(ALICE.author, EPOCH, 12)),
    "longest life": signed(expiry=(EPOCH + 4) * 60.0),
}

INVALID = {
    "nothing": (b"", "truncated"),
    "a frame": (FRAME, "bad_magic"),
    "over the size": (SIGNED + bytes(1025 - len(SIGNED)), "too_large"),
    "another swarm": (sign_announcement(announcement(), ALICE, OTHER_SWARM), "wrong_swarm"),
    "another author": (SIGNED[:40] + MALLORY.author + SIGNED[72:], "bad_signature"),
    "another domain": (
        SIGNED[:8] + envelope.close(envelope.FRAME, SWARM, ALICE, SIGNED[136:])[8:],
        "bad_signature",
    ),
    "small-order author": (SIGNED[:40] + bytes(32) + SIGNED[72:], "bad_key"),
    "another shard": (signed(shard=(announcement().shard + 1) % 4), "wrong_shard"),
    "the shard of another depth": (signed(depth=3), "wrong_shard"),
    "too great a depth": (bent(lambda w: w.update(depth=13)), "bad_schema"),
    "version 1": (
        SIGNED[:7] + b"1" + SIGNED[8:],
        "bad_magic",
    ),
    "expires as its epoch begins": (signed(expiry=EPOCH * 60.0), "bad_lifetime"),
    "lives too long": (signed(expiry=(EPOCH + 4) * 60.0 + 0.5), "bad_lifetime"),
    "offers too large a frame": (
        signed(offers=(replace(FULL[0], size=4097),)),
        "too_large",
    ),
    "five offers": (bent(lambda w: w["offers"].extend(w["offers"] * 4)), "too_many_items"),
    "one offer twice": (bent(lambda w: w["offers"].extend(w["offers"])), "bad_schema"),
    "offer of nothing": (bent_offer(groups=0, informative=0), "bad_schema"),
    "more informative groups than groups": (bent_offer(informative=2), "bad_schema"),
    "content id too short": (bent_offer(content_id=bytes(31)), "bad_schema"),
    "field missing": (bent(lambda w: w.pop("nonce")), "bad_schema"),
    "field unknown": (bent(lambda w: w.update(more=1)), "bad_schema"),
    "expiry an integer": (bent(lambda w: w.update(expiry=1750000000)), "bad_schema"),
    "negative epoch": (bent(lambda w: w.update(epoch=-1)), "bad_schema"),
    "too deep": (bent(lambda w: w.update(offers=[[[[]]]])), "too_deep"),
}

PLACE = {
    "key": key_of(announcement()),
    "subkey": ALICE.author,
    "expiry": EXPIRY,
    "now": NOW,
}
MISPLACED = {
    "another author's subkey": ({"subkey": MALLORY.author}, "wrong_shard"),
    "another depth's key": (
        {"key": key_of(announcement(depth=3, shard=shard_of(ALICE.author, EPOCH, 3)))},
        "wrong_shard",
    ),
    "another epoch's key": ({"key": key_of(announcement(epoch=EPOCH + 1))}, "wrong_shard"),
    "prolonged by others": ({"expiry": EXPIRY + 60.0}, "bad_lifetime"),
    "over": ({"now": EXPIRY}, "expired"),
    "from the future": ({"now": EPOCH * 60.0 - 3.5}, "bad_lifetime"),
}

PULL_RESPONSES = {
    "nothing": (b"", "truncated"),
    "unknown status": (b"\x03", "bad_schema"),
    "found, without a frame": (b"\x00", "truncated"),
    "not found, with a frame": (b"\x01" + FRAME, "trailing_bytes"),
}
GOSSIP_REQUESTS = {
    "limit zero": (encode({"after": 0, "limit": 0, "known": b""}), "bad_schema"),
    "limit too high": (encode({"after": 0, "limit": MAX_GOSSIP + 1, "known": b""}), "bad_schema"),
    "fields reordered": (encode({"limit": 1, "after": 0, "known": b""}), "bad_schema"),
    "version 1": (encode({"after": 0, "limit": 1}), "bad_schema"),
    "half a digest": (encode({"after": 0, "limit": 1, "known": bytes(4)}), "bad_schema"),
    "digests out of order": (
        encode({"after": 0, "limit": 1, "known": b"\x00\x00\x02\x00\x00\x01"}),
        "bad_schema",
    ),
    "a digest twice": (encode({"after": 0, "limit": 1, "known": bytes(6)}), "bad_schema"),
    "too many digests": (
        encode(
            {"after": 0, "limit": 1, "known": b"".join(n.to_bytes(3, "big") for n in range(257))}
        ),
        "too_large",
    ),
    "digests in an array": (encode({"after": 0, "limit": 1, "known": []}), "too_deep"),
    "digests as text": (encode({"after": 0, "limit": 1, "known": "abc"}), "bad_schema"),
    "nothing": (b"", "truncated"),
}
GOSSIP_RESPONSES = {
    "not an array": (encode({}), "bad_schema"),
    "a record that is a number": (encode([1]), "bad_schema"),
    "a record over 1 KiB": (encode([bytes(1025)]), "too_large"),
    "too many records": (encode([b""] * (MAX_GOSSIP + 1)), "too_many_items"),
}
