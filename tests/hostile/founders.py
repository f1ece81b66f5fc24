"""Manifests that a founder signs although they are none, or that go under another name."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgpack

from node.tasks.catalogue import load_catalogue
from protocol import envelope
from protocol.codec import MAX_MANIFEST_BYTES
from protocol.identity import Identity
from protocol.manifest import Manifest, sign_manifest

ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\r\nall is well"
DEEP = b"\x91" * 1000
WEAK = bytes((1,)) + bytes(31)
Lie = Callable[[Identity], bytes]


def honest(founder: Identity) -> bytes:
    """A manifest that nothing is wrong with."""
    manifest = Manifest(
        name="mallory",
        founder=founder.author,
        created=time.time(),
        catalogue=load_catalogue("tiny"),
    )
    return sign_manifest(manifest, founder)


def signed(founder: Identity, body: bytes) -> bytes:
    """Any body under a founder's good signature."""
    return envelope.close(envelope.MANIFEST, envelope.NO_SWARM, founder, body)


def field(name: str, value: Any) -> Lie:
    """A manifest in which one field is this."""

    def lie(founder: Identity) -> bytes:
        wire = msgpack.unpackb(honest(founder)[envelope.HEAD_BYTES :])
        wire[name] = value
        return signed(founder, msgpack.packb(wire, use_bin_type=True))

    return lie


def env(name: str, value: Any) -> Lie:
    """A manifest in which one field of the first family is this."""

    def lie(founder: Identity) -> bytes:
        wire = msgpack.unpackb(honest(founder)[envelope.HEAD_BYTES :])
        wire["catalogue"][0][name] = value
        return signed(founder, msgpack.packb(wire, use_bin_type=True))

    return lie


def without(name: str) -> Lie:
    """A manifest that lacks a field."""

    def lie(founder: Identity) -> bytes:
        wire = msgpack.unpackb(honest(founder)[envelope.HEAD_BYTES :])
        del wire[name]
        return signed(founder, msgpack.packb(wire, use_bin_type=True))

    return lie


def tampered(founder: Identity) -> bytes:
    made = bytearray(honest(founder))
    made[-1] ^= 1
    return bytes(made)


def under_another_name(founder: Identity) -> bytes:
    made = honest(founder)
    return made[:40] + Identity.generate().author + made[72:]


def under_a_weak_key(founder: Identity) -> bytes:
    made = honest(founder)
    return made[:40] + WEAK + WEAK + bytes(32) + made[envelope.HEAD_BYTES :]


LIES: dict[str, Lie] = {
    "nothing": lambda founder: b"",
    "garbage": lambda founder: b"\xff" * 4000,
    "cut short": lambda founder: honest(founder)[:200],
    "tampered": tampered,
    "another founder's name": under_another_name,
    "a weak key": under_a_weak_key,
    "another swarm's": lambda founder: honest(founder)[:8] + b"\x01" * 32 + honest(founder)[40:],
    "nested": lambda founder: signed(founder, DEEP),
    "promised items": lambda founder: signed(founder, b"\xdd\xff\xff\xff\xff"),
    "a long body": lambda founder: signed(founder, bytes(MAX_MANIFEST_BYTES - 200)),
    "no epoch": without("epoch_seconds"),
    "one more field": field("run", "id"),
    "name": field("name", ESCAPES),
    "created": field("created", float("nan")),
    "catalogue": field("catalogue", []),
    "catalogue of thousands": field("catalogue", [{}] * 5000),
    "epoch_seconds": field("epoch_seconds", 1e-9),
    "endless epoch_seconds": field("epoch_seconds", 1e300),
    "shards, as in version 1": field("shards", 3),
    "max_frame_bytes": field("max_frame_bytes", 1 << 40),
    "max_groups_per_epoch": field("max_groups_per_epoch", 1 << 40),
    "max_completions": field("max_completions", 0),
    "max_text_bytes": field("max_text_bytes", -1),
    "max_age_epochs": field("max_age_epochs", True),
    "admission": field("admission", ["pay", ESCAPES]),
    "endless work": field("admission", ["proof-of-work", 200]),
    "weak allow list": field("admission", ["allow-list", [WEAK]]),
    "family's name": env("name", ESCAPES),
    "family's path": env("name", "../../etc/passwd"),
    "family's source": env("source", f"exec {ESCAPES}"),
    "family's version": env("version", ESCAPES),
    "family's levels": env("levels", [ESCAPES]),
    "family's code": env("levels", ["{{}}.__class__"]),
    "family's nested level": env("levels", ["[" * 4000]),
    "family's template": env("template", "{question}{question.__class__}{question}"),
    "family's long template": env("template", "{question}" + "x" * 9000),
    "family's extract": env("extract", ESCAPES),
}
