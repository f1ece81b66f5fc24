"""Valid profiles, and invalid ones with their errors."""

from dataclasses import replace

from protocol import envelope
from protocol.profile import MAX_LINE, MAX_NAME, Profile, open_profile, sign_profile
from tests.protocol.samples import ALICE, FRAME, OTHER_SWARM, SWARM, Change, bent, forged
from tests.protocol.views import Wrong, invalid, valid, view

PROFILE = Profile("anna", "Two old laptops in a cellar.", "tiny", "0.1.0", 1750000015.5)
SIGNED = sign_profile(PROFILE, ALICE, SWARM)
TURNED = "\u202e"
"""After this character, text runs from right to left."""


def signed(**changes: object) -> bytes:
    return sign_profile(replace(PROFILE, **changes), ALICE, SWARM)


def changed(change: Change) -> bytes:
    return bent(envelope.PROFILE, SIGNED, change)


def updated(**fields: object) -> bytes:
    return changed(lambda wire: wire.update(fields))


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

INVALID: dict[str, Wrong] = {
    "nothing": (b"", "truncated"),
    "a frame": (FRAME, "bad_magic"),
    "over the size": (SIGNED + bytes(1025 - len(SIGNED)), "too_large"),
    **forged(
        envelope.PROFILE, SIGNED, sign_profile(PROFILE, ALICE, OTHER_SWARM), envelope.ANNOUNCEMENT
    ),
    "neither name nor line": updated(name="", line=""),
    "a name of 49 characters": (updated(name="n" * 49), "too_large"),
    "a name of 145 bytes": (updated(name="\U0001f98a" * 36 + "n"), "too_large"),
    "a line of 161 characters": (updated(line="l" * 161), "too_large"),
    "a model of 65 characters": (updated(model="m" * 65), "too_large"),
    "a version of 33 characters": (updated(version="1" * 33), "too_large"),
    "a model that is not ASCII": updated(model="mod\u00e8le"),
    "an escape in the version": updated(version="1\x1b[2J"),
    "an escape in the name": updated(name="anna\x1b[31m"),
    "a line of two": updated(line="one\ntwo"),
    "a separator of lines": updated(line="one\u2028two"),
    "a turn of direction": updated(name=f"{TURNED}anna"),
    "an isolate": updated(line="\u2067anna\u2069"),
    "no width": updated(name="an\u200bna"),
    "a blank letter": updated(name="\u3164"),
    "a selector of a variant": updated(name="anna\ufe0f"),
    "a blank that is none of ASCII": updated(name="an\u00a0na"),
    "a private character": updated(name="\ue000"),
    "a blank in front": updated(name=" anna"),
    "two blanks": updated(line="one  two"),
    "not in normal form C": updated(name="e\u0301ve"),
    "a mark in front": updated(name="\u0301anna"),
    "five marks on a letter": updated(name="x" + "\u0323\u0330\u0301\u0302\u0303"),
    "field missing": changed(lambda w: w.pop("made")),
    "field unknown": (updated(more=1), "too_many_items"),
    "fields reordered": changed(lambda w: w.update(name=w.pop("name"))),
    "made an integer": updated(made=1750000000),
    "made before time": updated(made=-1.0),
    "a name that is a number": updated(name=1),
    "a line that is an array": (updated(line=[]), "too_deep"),
}


def profile() -> dict:
    vectors = []
    for name, data in VALID.items():
        author, opened = open_profile(data, SWARM)
        vectors.append(valid(name, data, {"author": author.hex(), "profile": view(opened)}))
    return {"context": {"swarm_id": SWARM.hex()}, "vectors": vectors + invalid(INVALID)}
