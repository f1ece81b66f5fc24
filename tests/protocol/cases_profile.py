"""Profiles as they should be, and wrong ones with their error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from protocol import envelope
from protocol.codec import CodecLimits, decode, encode
from protocol.profile import MAX_LINE, MAX_NAME, Profile, sign_profile
from tests.protocol.samples import ALICE, FRAME, MALLORY, OTHER_SWARM, SWARM

PROFILE = Profile("anna", "Two old laptops in a cellar.", "tiny", "0.1.0", 1750000015.5)
SIGNED = sign_profile(PROFILE, ALICE, SWARM)
TURNED = "\u202e"
"""From here on text runs from right to left."""


def signed(**changes: object) -> bytes:
    return sign_profile(replace(PROFILE, **changes), ALICE, SWARM)


def bent(change: Callable[[dict], object]) -> bytes:
    """A profile that mallory signed properly around a changed body."""
    wire = decode(SIGNED[envelope.HEAD_BYTES :], CodecLimits(1024, 9, 200, 999, 99))
    change(wire)
    return envelope.close(envelope.PROFILE, SWARM, MALLORY, encode(wire))


def told(**fields: object) -> bytes:
    return bent(lambda wire: wire.update(fields))


VALID = {
    "name and line": SIGNED,
    "a name alone": signed(line="", model="", version=""),
    "a line alone": signed(name=""),
    "other scripts": signed(name="Анна 安娜 أنا", line="नमस्ते, ça va? 🦊"),
    "four marks on a letter": signed(name="x" + "\u0323\u0330\u0301\u0302"),
    "the longest": signed(
        name="\uac00" * MAX_NAME, line="\uac00" * MAX_LINE, model="m" * 64, version="v" * 32
    ),
}

INVALID = {
    "nothing": (b"", "truncated"),
    "a frame": (FRAME, "bad_magic"),
    "over the size": (SIGNED + bytes(1025 - len(SIGNED)), "too_large"),
    "another swarm": (sign_profile(PROFILE, ALICE, OTHER_SWARM), "wrong_swarm"),
    "another author": (SIGNED[:40] + MALLORY.author + SIGNED[72:], "bad_signature"),
    "another domain": (
        SIGNED[:8] + envelope.close(envelope.ANNOUNCEMENT, SWARM, ALICE, SIGNED[136:])[8:],
        "bad_signature",
    ),
    "small-order author": (SIGNED[:40] + bytes(32) + SIGNED[72:], "bad_key"),
    "neither name nor line": (told(name="", line=""), "bad_schema"),
    "a name of 49 characters": (told(name="n" * 49), "too_large"),
    "a name of 145 bytes": (told(name="\U0001f98a" * 36 + "n"), "too_large"),
    "a line of 161 characters": (told(line="l" * 161), "too_large"),
    "a model of 65 characters": (told(model="m" * 65), "too_large"),
    "a version of 33 characters": (told(version="1" * 33), "too_large"),
    "a model that is not ASCII": (told(model="mod\u00e8le"), "bad_schema"),
    "an escape in the version": (told(version="1\x1b[2J"), "bad_schema"),
    "an escape in the name": (told(name="anna\x1b[31m"), "bad_schema"),
    "a line of two": (told(line="one\ntwo"), "bad_schema"),
    "a separator of lines": (told(line="one\u2028two"), "bad_schema"),
    "a turn of direction": (told(name=f"{TURNED}anna"), "bad_schema"),
    "an isolate": (told(line="\u2067anna\u2069"), "bad_schema"),
    "no width": (told(name="an\u200bna"), "bad_schema"),
    "a blank letter": (told(name="\u3164"), "bad_schema"),
    "a selector of a variant": (told(name="anna\ufe0f"), "bad_schema"),
    "a blank that is none of ASCII": (told(name="an\u00a0na"), "bad_schema"),
    "a private character": (told(name="\ue000"), "bad_schema"),
    "a blank in front": (told(name=" anna"), "bad_schema"),
    "two blanks": (told(line="one  two"), "bad_schema"),
    "not in normal form C": (told(name="e\u0301ve"), "bad_schema"),
    "a mark in front": (told(name="\u0301anna"), "bad_schema"),
    "five marks on a letter": (told(name="x" + "\u0323\u0330\u0301\u0302\u0303"), "bad_schema"),
    "field missing": (bent(lambda w: w.pop("made")), "bad_schema"),
    "field unknown": (told(more=1), "too_many_items"),
    "fields reordered": (bent(lambda w: w.update(name=w.pop("name"))), "bad_schema"),
    "made an integer": (told(made=1750000000), "bad_schema"),
    "made before time": (told(made=-1.0), "bad_schema"),
    "a name that is a number": (told(name=1), "bad_schema"),
    "a line that is an array": (told(line=[]), "too_deep"),
}
