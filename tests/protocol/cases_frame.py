"""Valid frames, and invalid ones with the errors they must raise."""

import struct
from dataclasses import replace

import zstandard

from protocol import envelope
from protocol.announcement import sign_announcement
from protocol.codec import MAX_INT
from protocol.frame import open_frame, seal
from protocol.rollout import Tokens, encode_batch
from tests.protocol.samples import (
    ALICE,
    CLOSED,
    FRAME,
    MALLORY,
    MANIFEST,
    OTHER_SWARM,
    SWARM,
    TOKENS,
    Change,
    announcement,
    batch,
    completion,
    dialogue,
    forged,
    framed,
    framed_body,
    framed_plain,
    group,
    packed_body,
    plain_wire,
    zipped,
)
from tests.protocol.views import Wrong, in_swarm, invalid, valid, view

PLAIN = encode_batch(batch())
SIZE = len(PLAIN)
ZSTD = zstandard.ZstdCompressor().compress(PLAIN)
CHECKED = zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)
SKIPPABLE = bytes.fromhex("502a4d1804000000")
EMPTY = {"writer": 0, "text": "", "tokens": None}


def bent(change: Change) -> bytes:
    """Return a frame around a changed body, correctly signed by mallory."""
    wire = plain_wire()
    change(wire)
    return framed(wire)


def completion_of(wire: dict) -> dict:
    return wire["groups"][0]["completions"][0]


def segment_of(wire: dict) -> dict:
    return completion_of(wire)["segments"][0]


def tokens_of(wire: dict) -> dict:
    return segment_of(wire)["tokens"]


def updated(**fields: object) -> bytes:
    return bent(lambda wire: wire.update(fields))


def in_group(**fields: object) -> bytes:
    return bent(lambda wire: wire["groups"][0].update(fields))


def in_completion(**fields: object) -> bytes:
    return bent(lambda wire: completion_of(wire).update(fields))


def in_segment(**fields: object) -> bytes:
    return bent(lambda wire: segment_of(wire).update(fields))


def in_tokens(**fields: object) -> bytes:
    return bent(lambda wire: tokens_of(wire).update(fields))


def of_dictionary(number: int) -> bytes:
    """Return a frame whose zstd header names a dictionary; 0 means none."""
    packed = bytearray(ZSTD)
    packed[4] |= 1  # One byte of dictionary id follows a single-segment descriptor.
    packed.insert(5, number)
    return packed_body(bytes(packed), SIZE, ALICE)


EXTREME = Tokens((0, (1 << 32) - 1), (-65504.0, -5.9604644775390625e-08), (0, MAX_INT))
PLAIN_BATCHES = {
    "plain": batch(),
    "negative zeros": batch(
        group(
            0,
            completion(reward=-0.0, tokens=replace(TOKENS, logprobs=(-0.0, -1.0, 0.0))),
            completion(),
        ),
        created=-0.0,
    ),
    "dialogue": batch(group(3, dialogue(), completion())),
    "two families, no tokens": batch(
        group(0, completion(tokens=None), completion("", 0.0, None)),
        group(1, completion(tokens=None), completion("\0\n✗", 0.25, None), env="riddles"),
    ),
    "extreme values": batch(
        group(15, completion(tokens=EXTREME), completion(reward=-1e300), level=1),
        sequence=MAX_INT,
        policy_step=0,
        created=0.0,
        model=" ~" * 64,
        temperature=1000.0,
        max_new_tokens=MAX_INT,
    ),
}
VALID = {
    "zstd": seal(batch(*(group(n) for n in range(4))), ALICE, SWARM),
    "zstd with a checksum": packed_body(CHECKED, SIZE, ALICE),
    "zstd with a dictionary id of 0": of_dictionary(0),
    **{n: seal(each, ALICE, SWARM, compress=False) for n, each in PLAIN_BATCHES.items()},
}

INVALID: dict[str, Wrong] = {
    "nothing": (b"", "truncated"),
    "head cut short": (FRAME[:100], "truncated"),
    "another magic": (b"SWARFRM2" + FRAME[8:], "bad_magic"),
    "an announcement": (sign_announcement(announcement(), ALICE, SWARM), "bad_magic"),
    "over the size": (framed_plain(bytes(MANIFEST.max_frame_bytes)), "too_large"),
    **forged(envelope.FRAME, FRAME, seal(batch(), ALICE, OTHER_SWARM), envelope.ANNOUNCEMENT),
    "a bit flipped in the signature": (
        FRAME[:72] + bytes([FRAME[72] ^ 1]) + FRAME[73:],
        "bad_signature",
    ),
    "a bit flipped in the last byte": (FRAME[:-1] + bytes([FRAME[-1] ^ 1]), "bad_signature"),
    "a byte more": (FRAME + b"\0", "bad_signature"),
    "body without its head": (framed_body(b"\0"), "truncated"),
    **{
        name: (data, "bad_compression")
        for name, data in {
            "unknown compression": framed_body(struct.pack(">BI", 2, 1) + b"\0"),
            "plain length too small": framed_body(struct.pack(">BI", 0, SIZE - 1) + PLAIN),
            "zstd length too small": packed_body(ZSTD, SIZE - 1),
            "zstd length too large": packed_body(ZSTD, SIZE + 1),
            "zstd length far too large": packed_body(ZSTD, SIZE + 1000),
            "zstd without a length": zipped(PLAIN, SIZE, write_content_size=False),
            "zstd bomb that declares little": zipped(bytes(1 << 20), 100),
            "zstd with a wrong checksum": packed_body(CHECKED[:-1] + b"\0", SIZE),
            "zstd with a dictionary id of 1": of_dictionary(1),
            "not zstd": packed_body(b"1234", 4),
            "skippable zstd frame": packed_body(SKIPPABLE + b"1234", 4),
            "a second zstd frame": packed_body(ZSTD * 2, SIZE),
            "a byte behind the zstd frame": packed_body(ZSTD + b"\0", SIZE),
            "a skippable frame behind it": packed_body(
                ZSTD + bytes.fromhex("502a4d1800000000"), SIZE
            ),
        }.items()
    },
    "zstd bomb": (zipped(bytes(1 << 20), 1 << 20), "too_large"),
    "body of another kind": framed([]),
    "body with a byte more": (framed_plain(PLAIN + b"\0"), "trailing_bytes"),
    "duplicate key": (
        framed_plain(PLAIN.replace(b"\xabpolicy_step", b"\xa8sequence", 1)),
        "duplicate_key",
    ),
    "float32 temperature": (
        framed_plain(
            PLAIN.replace(
                b"temperature\xcb" + struct.pack(">d", 1.0), b"temperature\xca\x3f\x80\0\0"
            )
        ),
        "bad_encoding",
    ),
    "too deep": (in_tokens(versions=[[[]]]), "too_deep"),
    "field missing": bent(lambda w: w.pop("model")),
    "field unknown": updated(more=1),
    "fields reordered": bent(lambda w: w.update(sequence=w.pop("sequence"))),
    "integer for a float": updated(created=1),
    "model name too long": (updated(model="x" * 129), "too_large"),
    "model name with an escape": updated(model="\x1b[2J"),
    "encoding digest too short": updated(encoding=bytes(31)),
    "temperature zero": updated(temperature=0.0),
    "no group": updated(groups=[]),
    "one task twice": bent(lambda w: w["groups"].append(w["groups"][0])),
    "unknown family": in_group(env="lcm"),
    "name of a family too long": (in_group(env="x" * 65), "too_large"),
    "string beyond the body": (
        framed_plain(PLAIN.replace(b"\xa4tiny", b"\xda" + struct.pack(">H", 2 * SIZE) + b"tiny")),
        "truncated",
    ),
    "unknown level": in_group(level=2),
    "index over the limit": in_group(index=16),
    "epoch over 63 bits": in_group(epoch=1 << 63),
    "one completion": bent(lambda w: w["groups"][0]["completions"].pop()),
    "five completions": (
        bent(lambda w: w["groups"][0]["completions"].extend([completion_of(w)] * 3)),
        "too_many_items",
    ),
    "text over the limit": (in_segment(text="x" * 257), "too_large"),
    "unknown writer": in_segment(writer=2),
    "tokens of the environment": in_segment(writer=1),
    "unknown finish": in_completion(finish=2),
    "reward an integer": in_completion(reward=1),
    "no segment": in_completion(segments=[]),
    "65 segments": (in_completion(segments=[EMPTY] * 65), "too_many_items"),
    "ids of half a word": in_tokens(ids=bytes(10)),
    "ids of an odd length": in_tokens(ids=bytes(11)),
    "no ids": in_tokens(ids=b""),
    "ids of another length": in_tokens(ids=bytes(16)),
    "log-probs of another length": in_tokens(logprobs=bytes(4)),
    "log-prob NaN": in_tokens(logprobs=b"\x00\x7e" * 3),
    "log-prob minus infinity": in_tokens(logprobs=b"\x00\xfc" * 3),
    "log-prob above zero": in_tokens(logprobs=b"\x00\x3c" * 3),
    "runs of versions too short": in_tokens(versions=[7, 2]),
    "runs of versions one too long": in_tokens(versions=[7, 4]),
    "run of versions too long": in_tokens(versions=[7, MAX_INT]),
    "two runs of one version": in_tokens(versions=[7, 1, 7, 2]),
    "a run of no length": in_tokens(versions=[7, 3, 8, 0]),
    "a version without a length": in_tokens(versions=[7, 3, 8]),
    "more runs than tokens": (in_tokens(versions=[7, 1] * 4), "too_many_items"),
}


def frame() -> dict:
    closed = in_swarm(CLOSED)
    swarm = bytes.fromhex(closed["swarm_id"])
    listed = seal(batch(), ALICE, swarm, compress=False)
    unlisted = seal(batch(), MALLORY, swarm)
    expected = view(open_frame(listed, swarm, CLOSED))
    vectors = [
        *(valid(n, each, view(open_frame(each, SWARM, MANIFEST))) for n, each in VALID.items()),
        *invalid(INVALID),
        valid("author on the allow list", listed, expected, **closed),
        *invalid({"author off the allow list": (unlisted, "not_admitted")}, **closed),
    ]
    return {"context": in_swarm(), "vectors": vectors}
