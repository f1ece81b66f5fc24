"""Manifests as they should be, and wrong ones with the error they deserve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protocol import envelope
from protocol.codec import CodecLimits, decode, encode
from protocol.manifest import canonical_json, sign_manifest
from tests.protocol.samples import ALICE, CLOSED, FRAME, MALLORY, MANIFEST, SIGNED, WORKING


def bent(change: Callable[[dict], object]) -> bytes:
    """A manifest that mallory signed properly around a changed body."""
    body = SIGNED[envelope.HEAD_BYTES :]
    wire = decode(body, CodecLimits(1 << 20, 9, 1 << 16, 1 << 16, 64))
    change(wire)
    return envelope.close(envelope.MANIFEST, envelope.NO_SWARM, MALLORY, encode(wire))


def bent_env(**fields: object) -> bytes:
    return bent(lambda wire: wire["catalogue"][0].update(fields))


ODD = canonical_json({"é": "\n\x7f🙂/", "a": [1, -2.5, 1e-05, 1e16, True, None, {}], "b": 10**20})


def nested(depth: int) -> str:
    """A canonical object with arrays in it, and brackets in a string that do not count."""
    return '{"[[[[[[[[[[[[[[[[[[":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


VALID = {
    "open": SIGNED,
    "allow list": sign_manifest(CLOSED, ALICE),
    "proof of work": sign_manifest(WORKING, ALICE),
    "level with everything that JSON has": sign_manifest(
        replace(MANIFEST, catalogue=(replace(MANIFEST.catalogue[0], levels=(ODD,)),)), ALICE
    ),
}

VALID["level nested sixteen deep"] = sign_manifest(
    replace(MANIFEST, catalogue=(replace(MANIFEST.catalogue[0], levels=(nested(16),)),)), ALICE
)

INVALID = {
    "nothing": (b"", "truncated"),
    "half a magic": (SIGNED[:4], "truncated"),
    "half another magic": (b"SWAP", "bad_magic"),
    "a frame": (FRAME, "bad_magic"),
    "a swarm id where there is none yet": (SIGNED[:39] + b"\1" + SIGNED[40:], "wrong_swarm"),
    "another founder": (SIGNED[:40] + MALLORY.author + SIGNED[72:], "bad_signature"),
    "small-order founder": (SIGNED[:40] + bytes(32) + SIGNED[72:], "bad_key"),
    "a bit flipped in the body": (SIGNED[:-1] + bytes([SIGNED[-1] ^ 1]), "bad_signature"),
    "field missing": (bent(lambda w: w.pop("created")), "bad_schema"),
    "field unknown": (bent(lambda w: w.update(more=1)), "bad_schema"),
    "no name": (bent(lambda w: w.update(name="")), "bad_schema"),
    "epoch length an integer": (bent(lambda w: w.update(epoch_seconds=60)), "bad_schema"),
    "epoch of no length": (bent(lambda w: w.update(epoch_seconds=0.0)), "bad_schema"),
    "a number of shards, as in version 1": (bent(lambda w: w.update(shards=4)), "bad_schema"),
    "version 1": (SIGNED[:7] + b"1" + SIGNED[8:], "bad_magic"),
    "frames over the hard limit": (
        bent(lambda w: w.update(max_frame_bytes=(1 << 20) + 1)),
        "bad_schema",
    ),
    "empty catalogue": (bent(lambda w: w.update(catalogue=[])), "bad_schema"),
    "one family twice": (
        bent(lambda w: w.update(catalogue=[w["catalogue"][0]] * 2)),
        "bad_schema",
    ),
    "family with a path for a name": (bent_env(name="../gcd"), "bad_schema"),
    "unknown source": (bent_env(source="shell"), "bad_schema"),
    "no level": (bent_env(levels=[]), "bad_schema"),
    "level with a blank": (bent_env(levels=['{"a": 1}']), "bad_schema"),
    "level with unsorted keys": (bent_env(levels=['{"b":1,"a":2}']), "bad_schema"),
    "level with a duplicate key": (bent_env(levels=['{"a":1,"a":1}']), "bad_schema"),
    "level with a needless escape": (bent_env(levels=['{"a":"\\u00e9"}']), "bad_schema"),
    "level with NaN": (bent_env(levels=['{"a":NaN}']), "bad_schema"),
    "level that is an array": (bent_env(levels=["[]"]), "bad_schema"),
    "level nested seventeen deep": (bent_env(levels=[nested(17)]), "bad_schema"),
    "level nested two thousand deep": (bent_env(levels=[nested(2000)]), "bad_schema"),
    "name of the swarm too long": (bent(lambda w: w.update(name="x" * 65)), "too_large"),
    "name of a family too long": (bent_env(name="x" * 65), "bad_schema"),
    "version too long": (bent_env(version="x" * 129), "too_large"),
    "template too long": (bent_env(template="{question}" + "x" * 4087), "too_large"),
    "level too long": (bent_env(levels=['{"a":"' + "x" * 4089 + '"}']), "too_large"),
    "template without a place": (bent_env(template="?"), "bad_schema"),
    "template with two places": (bent_env(template="{question}{question}"), "bad_schema"),
    "unknown extraction": (bent_env(extract="regex"), "bad_schema"),
    "unknown admission": (bent(lambda w: w.update(admission=["closed"])), "bad_schema"),
    "allow list with a small-order key": (
        bent(lambda w: w.update(admission=["allow-list", [bytes(32)]])),
        "bad_key",
    ),
    "allow list with a repeat": (
        bent(lambda w: w.update(admission=["allow-list", [ALICE.author] * 2])),
        "bad_schema",
    ),
    "admission of nothing": (bent(lambda w: w.update(admission=[])), "bad_schema"),
    "admission that is no array": (bent(lambda w: w.update(admission="open")), "bad_schema"),
    "open to somebody": (bent(lambda w: w.update(admission=["open", None])), "bad_schema"),
    "allow list without a list": (bent(lambda w: w.update(admission=["allow-list"])), "bad_schema"),
    "allow list of nobody": (bent(lambda w: w.update(admission=["allow-list", []])), "bad_schema"),
    "work and something more": (
        bent(lambda w: w.update(admission=["proof-of-work", 1, 1])),
        "too_many_items",
    ),
    "too much work": (bent(lambda w: w.update(admission=["proof-of-work", 41])), "bad_schema"),
}
