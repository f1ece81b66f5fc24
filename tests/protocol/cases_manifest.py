"""Valid manifests, and invalid ones with the errors they must raise."""

from dataclasses import replace

from protocol import envelope
from protocol.manifest import canonical_json, open_manifest, sign_manifest, swarm_id
from tests.protocol.samples import (
    ALICE,
    CLOSED,
    FRAME,
    MALLORY,
    MANIFEST,
    SIGNED,
    WORKING,
    Change,
    bent,
)
from tests.protocol.views import Wrong, invalid, valid, view


def resigned(change: Change) -> bytes:
    """Return a manifest with a changed body, correctly signed by mallory."""
    return bent(envelope.MANIFEST, SIGNED, change)


def said(**fields: object) -> bytes:
    return resigned(lambda wire: wire.update(fields))


def in_env(**fields: object) -> bytes:
    return resigned(lambda wire: wire["catalogue"][0].update(fields))


def nested(depth: int) -> str:
    """Return a canonical object with nested arrays and a string with brackets."""
    return '{"[[[[[[[[[[[[[[[[[[":' + "[" * (depth - 1) + "]" * (depth - 1) + "}"


def of_level(level: str) -> bytes:
    env = replace(MANIFEST.catalogue[0], levels=(level,))
    return sign_manifest(replace(MANIFEST, catalogue=(env,)), ALICE)


def of_version(version: str) -> bytes:
    env = replace(MANIFEST.catalogue[1], version=version)
    return sign_manifest(replace(MANIFEST, catalogue=(env,)), ALICE)


ODD = canonical_json({"é": "\n\x7f🙂/", "a": [1, -2.5, 1e-05, 1e16, True, None, {}], "b": 10**20})
VALID = {
    "open": SIGNED,
    "allow list": sign_manifest(CLOSED, ALICE),
    "proof of work": sign_manifest(WORKING, ALICE),
    "level with everything that JSON has": of_level(ODD),
    "level with the nearest decimal": of_level('{"a":0.30000000000000004}'),
    "level nested sixteen deep": of_level(nested(16)),
    "level with a control": of_level('{"a":"\\u001f"}'),
    "version of a file that is no hash": of_version("third edition"),
}

INVALID: dict[str, Wrong] = {
    "nothing": (b"", "truncated"),
    "half a magic": (SIGNED[:4], "truncated"),
    "half another magic": (b"SWAP", "bad_magic"),
    "a frame": (FRAME, "bad_magic"),
    "an announcement of version 1": (b"SWARANN1" + SIGNED[8:], "bad_magic"),
    "a swarm id where there is none yet": (SIGNED[:39] + b"\1" + SIGNED[40:], "wrong_swarm"),
    "another founder": (SIGNED[:40] + MALLORY.author + SIGNED[72:], "bad_signature"),
    "small-order founder": (SIGNED[:40] + bytes(32) + SIGNED[72:], "bad_key"),
    "a bit flipped in the body": (SIGNED[:-1] + bytes([SIGNED[-1] ^ 1]), "bad_signature"),
    "field missing": resigned(lambda w: w.pop("created")),
    "field unknown": said(more=1),
    "no name": said(name=""),
    "epoch length an integer": said(epoch_seconds=60),
    "epoch of no length": said(epoch_seconds=0.0),
    "a number of shards, as in version 1": said(shards=4),
    "version 1": (SIGNED[:7] + b"1" + SIGNED[8:], "bad_magic"),
    "frames over the hard limit": said(max_frame_bytes=(1 << 20) + 1),
    "empty catalogue": said(catalogue=[]),
    "one family twice": resigned(lambda w: w.update(catalogue=[w["catalogue"][0]] * 2)),
    "family with a path for a name": in_env(name="../gcd"),
    "unknown source": in_env(source="shell"),
    "no level": in_env(levels=[]),
    "level with a blank": in_env(levels=['{"a": 1}']),
    "level with unsorted keys": in_env(levels=['{"b":1,"a":2}']),
    "level with a duplicate key": in_env(levels=['{"a":1,"a":1}']),
    "level with a needless escape": in_env(levels=['{"a":"\\u00e9"}']),
    "level with a longer escape": in_env(levels=['{"a":"\\u000a"}']),
    "level with an escape in capitals": in_env(levels=['{"a":"\\u001F"}']),
    "level with NaN": in_env(levels=['{"a":NaN}']),
    "level with a decimal that is not the nearest": in_env(levels=['{"a":0.30000000000000003}']),
    "level that is an array": in_env(levels=["[]"]),
    "level nested seventeen deep": in_env(levels=[nested(17)]),
    "level nested two thousand deep": in_env(levels=[nested(2000)]),
    "name of the swarm too long": (said(name="x" * 65), "too_large"),
    "name of a family too long": in_env(name="x" * 65),
    "version too long": (in_env(version="x" * 129), "too_large"),
    "template too long": (in_env(template="{question}" + "x" * 4087), "too_large"),
    "level too long": (in_env(levels=['{"a":"' + "x" * 4089 + '"}']), "too_large"),
    "template without a place": in_env(template="?"),
    "template with two places": in_env(template="{question}{question}"),
    "unknown extraction": in_env(extract="regex"),
    "unknown admission": said(admission=["closed"]),
    "allow list with a small-order key": (said(admission=["allow-list", [bytes(32)]]), "bad_key"),
    "allow list with a short key": said(admission=["allow-list", [b"short"]]),
    "allow list with a repeat": said(admission=["allow-list", [ALICE.author] * 2]),
    "allow list out of order": said(
        admission=["allow-list", sorted([ALICE.author, MALLORY.author], reverse=True)]
    ),
    "admission of nothing": said(admission=[]),
    "admission that is no array": said(admission="open"),
    "open to somebody": said(admission=["open", None]),
    "allow list without a list": said(admission=["allow-list"]),
    "allow list of nobody": said(admission=["allow-list", []]),
    "work and something more": (said(admission=["proof-of-work", 1, 1]), "too_many_items"),
    "no work": said(admission=["proof-of-work", 0]),
    "too much work": said(admission=["proof-of-work", 41]),
}


def manifest() -> dict:
    vectors = [
        valid(name, data, {"swarm_id": swarm_id(data).hex(), "manifest": view(open_manifest(data))})
        for name, data in VALID.items()
    ]
    return {"context": {}, "vectors": vectors + invalid(INVALID)}
