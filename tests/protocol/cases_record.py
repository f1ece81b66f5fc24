"""Valid announcements and stream messages, and invalid ones with their errors."""

from dataclasses import replace

from protocol import envelope
from protocol.announcement import (
    Announcement,
    Offer,
    dht_key_of,
    open_announcement,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.codec import encode
from protocol.manifest import Manifest, find_nonce
from protocol.messages import (
    MAX_GOSSIP,
    DialledBack,
    GossipRequest,
    PullStatus,
    encode_dial_back_request,
    encode_dial_back_response,
    encode_gossip_request,
    encode_gossip_response,
    encode_pull_response,
    record_digest,
)
from tests.protocol.samples import (
    ALICE,
    CLOSED,
    EPOCH,
    FRAME,
    MALLORY,
    MANIFEST,
    NOW,
    OTHER_SWARM,
    SWARM,
    WORKING,
    Change,
    announcement,
    bent,
    forged,
)
from tests.protocol.views import Wrong, in_swarm, invalid, valid, view

FULL = tuple(Offer(bytes([n]) * 32, 4096, 1024, bytes([n] * 8), n) for n in range(4))
SIGNED = sign_announcement(announcement(), ALICE, SWARM)
EXPIRY = announcement().expiry


def signed(**changes: object) -> bytes:
    return sign_announcement(announcement(**changes), ALICE, SWARM)


def changed(change: Change) -> bytes:
    return bent(envelope.ANNOUNCEMENT, SIGNED, change)


def told(**fields: object) -> bytes:
    return changed(lambda wire: wire.update(fields))


def offering(**fields: object) -> bytes:
    return changed(lambda wire: wire["offers"][0].update(fields))


def key_of(made: Announcement) -> bytes:
    return dht_key_of(record_key(SWARM, made.epoch, made.depth, made.shard))


VALID = {
    "one offer": SIGNED,
    "no offer": signed(offers=()),
    "four offers": signed(offers=FULL),
    "depth 0": signed(depth=0, shard=0),
    "depth 12": signed(depth=12, shard=shard_of(ALICE.author, EPOCH, 12)),
    "longest life": signed(expiry=(EPOCH + 4) * 60.0),
    "a nonce without proof of work": signed(nonce=7),
    "an epoch beyond float64": signed(epoch=(1 << 54) + 2, expiry=((1 << 54) + 8) * 60.0),
}

INVALID: dict[str, Wrong] = {
    "nothing": (b"", "truncated"),
    "a frame": (FRAME, "bad_magic"),
    "over the size": (SIGNED + bytes(1025 - len(SIGNED)), "too_large"),
    **forged(
        envelope.ANNOUNCEMENT,
        SIGNED,
        sign_announcement(announcement(), ALICE, OTHER_SWARM),
        envelope.FRAME,
    ),
    "another shard": (signed(shard=(announcement().shard + 1) % 4), "wrong_shard"),
    "the shard of another depth": (signed(depth=3), "wrong_shard"),
    "too great a depth": told(depth=13),
    "version 1": (SIGNED[:7] + b"1" + SIGNED[8:], "bad_magic"),
    "expires as its epoch begins": (signed(expiry=EPOCH * 60.0), "bad_lifetime"),
    "lives too long": (signed(expiry=(EPOCH + 4) * 60.0 + 0.5), "bad_lifetime"),
    "lives a little too long": (signed(expiry=(EPOCH + 4) * 60.0 + 0.1), "bad_lifetime"),
    "expires before the first epoch": told(expiry=-1.0),
    "lives for ever": (signed(expiry=1e300), "bad_lifetime"),
    "offers too large a frame": (signed(offers=(replace(FULL[0], size=4097),)), "too_large"),
    "five offers": (changed(lambda w: w["offers"].extend(w["offers"] * 4)), "too_many_items"),
    "one offer twice": changed(lambda w: w["offers"].extend(w["offers"])),
    "offer of nothing": offering(groups=0, informative=0),
    "offer of no bytes": offering(size=0),
    "offer of more bytes than any frame": offering(size=(1 << 20) + 1),
    "offer without a size": changed(lambda w: w["offers"][0].pop("size")),
    "families in nine bytes": offering(env_digest=bytes(9)),
    "more informative groups than groups": offering(informative=2),
    "content id too short": offering(content_id=bytes(31)),
    "field missing": changed(lambda w: w.pop("nonce")),
    "field unknown": told(more=1),
    "expiry an integer": told(expiry=1750000000),
    "negative epoch": told(epoch=-1),
    "epoch over 63 bits": told(epoch=1 << 63),
    "no array of offers": told(offers=None),
    "too deep": (told(offers=[[[[]]]]), "too_deep"),
}

PLACE = {"key": key_of(announcement()), "subkey": ALICE.author, "expiry": EXPIRY, "now": NOW}
MISPLACED = {
    "another author's subkey": ({"subkey": MALLORY.author}, "wrong_shard"),
    "another depth's key": (
        {"key": key_of(announcement(depth=3, shard=shard_of(ALICE.author, EPOCH, 3)))},
        "wrong_shard",
    ),
    "another epoch's key": ({"key": key_of(announcement(epoch=EPOCH + 1))}, "wrong_shard"),
    "no key": ({"key": bytes(20)}, "wrong_shard"),
    "prolonged by others": ({"expiry": EXPIRY + 60.0}, "bad_lifetime"),
    "prolonged by a second": ({"expiry": EXPIRY + 1.0}, "bad_lifetime"),
    "shortened by others": ({"expiry": EXPIRY - 1.0}, "bad_lifetime"),
    "over": ({"now": EXPIRY}, "expired"),
    "from the future": ({"now": EPOCH * 60.0 - 3.5}, "bad_lifetime"),
    "another author's subkey, over": ({"subkey": MALLORY.author, "now": EXPIRY}, "wrong_shard"),
    "no key, from the future": ({"key": bytes(20), "now": EPOCH * 60.0 - 3.5}, "wrong_shard"),
    "prolonged by others, over": ({"expiry": EXPIRY + 60.0, "now": EXPIRY}, "bad_lifetime"),
    "no key, prolonged by others": ({"key": bytes(20), "expiry": EXPIRY + 60.0}, "wrong_shard"),
}

PULL_RESPONSES: dict[str, Wrong] = {
    "nothing": (b"", "truncated"),
    "unknown status": b"\x03",
    "found, without a frame": (b"\x00", "truncated"),
    "not found, with a frame": (b"\x01" + FRAME, "trailing_bytes"),
    "busy, with a byte": (b"\x02\x00", "trailing_bytes"),
    "found, with less than a head": (b"\x00" + FRAME[:135], "truncated"),
}


def request(**changes: object) -> bytes:
    return encode({"after": 0, "limit": 1, "known": b"", **changes})


GOSSIP_REQUESTS: dict[str, Wrong] = {
    "limit zero": request(limit=0),
    "limit too high": request(limit=MAX_GOSSIP + 1),
    "after less than nothing": request(after=-1),
    "after a float": request(after=0.0),
    "fields reordered": encode({"limit": 1, "after": 0, "known": b""}),
    "field missing": encode({"after": 0, "known": b""}),
    "no request": encode(None),
    "version 1": encode({"after": 0, "limit": 1}),
    "half a digest": request(known=bytes(4)),
    "digests out of order": request(known=b"\x00\x00\x02\x00\x00\x01"),
    "a digest twice": request(known=bytes(6)),
    "too many digests": (
        request(known=b"".join(n.to_bytes(3, "big") for n in range(257))),
        "too_large",
    ),
    "digests in an array": (request(known=[]), "too_deep"),
    "digests as text": request(known="abc"),
    "nothing": (b"", "truncated"),
}
GOSSIP_RESPONSES: dict[str, Wrong] = {
    "not an array": encode({}),
    "a record that is a number": encode([1]),
    "a record over 1 KiB": (encode([bytes(1025)]), "too_large"),
    "too many records": (encode([b""] * (MAX_GOSSIP + 1)), "too_many_items"),
}

PORTS = (31337, 4001)
DIALLED = DialledBack("192.0.2.7", PORTS[:1], True)


def back(**changes: object) -> bytes:
    return encode({"host": "192.0.2.7", "open": [31337], "relays": True, **changes})


DIAL_BACK_REQUESTS: dict[str, Wrong] = {
    "no port": encode({"ports": []}),
    "five ports": (encode({"ports": [4001] * 5}), "too_many_items"),
    "port 0": encode({"ports": [0]}),
    "port 65536": encode({"ports": [65536]}),
    "a port as text": encode({"ports": ["4001"]}),
    "ports alone": encode([4001]),
    "another field": encode({"ports": [4001], "host": 1}),
    "over the size": (encode({"ports": [4001], "x": "y" * 24}), "too_large"),
    "nothing": (b"", "truncated"),
}
DIAL_BACK_RESPONSES: dict[str, Wrong] = {
    "a port that was not asked for": back(open=[4002]),
    "a name for an address": back(host="peer.example"),
    "no address": back(host=""),
    "an address of 65 bytes": (back(host="1" * 65), "too_large"),
    "relays a number": back(relays=1),
    "five ports": (back(open=[4001] * 5), "too_many_items"),
    "an address with a zero in front": back(host="192.0.2.07"),
    "an address without its last number": back(host="192.0.2"),
    "fields reordered": encode({"open": [], "host": "192.0.2.7", "relays": True}),
    "nothing": (b"", "truncated"),
}


def opened(name: str, data: bytes, swarm: bytes = SWARM, manifest: Manifest = MANIFEST) -> dict:
    author, read = open_announcement(data, swarm, manifest)
    return valid(name, data, {"author": author.hex(), "announcement": view(read)})


def records() -> dict:
    """Return records, and a valid record in right and wrong places (``place``)."""
    vectors = [opened(name, data) for name, data in VALID.items()]
    place = {name: view(value) for name, value in PLACE.items()}
    vectors.append({**vectors[0], "name": "in its place", "place": place})
    vectors += invalid(INVALID)
    closed = in_swarm(CLOSED)
    unlisted = sign_announcement(announcement(MALLORY), MALLORY, bytes.fromhex(closed["swarm_id"]))
    vectors += invalid({"author off the allow list": (unlisted, "not_admitted")}, **closed)
    working = in_swarm(WORKING)
    swarm = bytes.fromhex(working["swarm_id"])
    nonce = find_nonce(WORKING.admission, swarm, ALICE.author)
    paid, lazy = (sign_announcement(announcement(nonce=nonce + n), ALICE, swarm) for n in (0, 1))
    vectors.append({**opened("work done", paid, swarm, WORKING), **working})
    vectors += invalid({"no work done": (lazy, "not_admitted")}, **working)
    for name, (change, error) in MISPLACED.items():
        moved = {field: view(value) for field, value in change.items()}
        vectors += invalid({name: (SIGNED, error)}, place={**place, **moved})
    vectors += invalid({"a byte less in its place": (SIGNED[:-1], "bad_signature")}, place=place)
    return {"context": in_swarm(), "vectors": vectors}


def messages() -> dict:
    """Return stream messages; ``kind`` names the decoder."""
    records = list(VALID.values())[:2]
    asked = GossipRequest(EPOCH - 2, 64, tuple(sorted(map(record_digest, records))))
    kinds = ("pull_response", "gossip_request", "gossip_response")
    pull, question, told = ({"kind": kind} for kind in kinds)
    found, missing = {"status": 0, "frame": FRAME.hex()}, {"status": 1, "frame": ""}
    shortest, pair = {"status": 0, "frame": FRAME[:136].hex()}, encode_gossip_response(records)
    vectors = [
        valid("frame found", encode_pull_response(PullStatus.OK, FRAME), found, **pull),
        valid("frame not found", encode_pull_response(PullStatus.NOT_FOUND), missing, **pull),
        valid("what is new?", encode_gossip_request(asked), view(asked), **question),
        valid("two records", encode_gossip_response(records), view(records), **told),
        *invalid(PULL_RESPONSES, **pull),
        *invalid(GOSSIP_REQUESTS, **question),
        *invalid(GOSSIP_RESPONSES, **told),
        valid("busy", encode_pull_response(PullStatus.BUSY), {"status": 2, "frame": ""}, **pull),
        valid("found, the shortest", b"\0" + FRAME[:136], shortest, **pull),
        valid("as many records as asked for", pair, view(records), **told, limit=2),
        *invalid({"more records than asked for": (pair, "too_many_items")}, **told, limit=1),
        *dial_backs(),
    ]
    return {"context": {}, "vectors": vectors}


def dial_backs() -> list[dict]:
    """Return dial-back requests, and answers to a request for ``asked``."""
    question: dict[str, object] = {"kind": "dial_back_request"}
    answer: dict[str, object] = {"kind": "dial_back_response", "asked": list(PORTS)}
    moved = {"ports in another order": PORTS[::-1], "a port twice": PORTS[:1] * 2}
    nowhere = replace(DIALLED, host="2001:db8::7", open=(), relays=False)
    return [
        valid("can you dial me?", encode_dial_back_request(PORTS), view(PORTS), **question),
        valid("one port open", encode_dial_back_response(DIALLED), view(DIALLED), **answer),
        valid("no port open", encode_dial_back_response(nowhere), view(nowhere), **answer),
        *(
            valid(name, back(open=list(ports)), view(replace(DIALLED, open=ports)), **answer)
            for name, ports in moved.items()
        ),
        *invalid(DIAL_BACK_REQUESTS, **question),
        *invalid(DIAL_BACK_RESPONSES, **answer),
    ]
