"""Frames as they should be, and wrong ones with the error they deserve."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

import zstandard

from protocol import envelope
from protocol.announcement import sign_announcement
from protocol.codec import MAX_INT
from protocol.frame import seal
from protocol.rollout import Tokens, encode_batch
from tests.protocol.samples import (
    ALICE,
    FRAME,
    MALLORY,
    MANIFEST,
    OTHER_SWARM,
    SWARM,
    TOKENS,
    announcement,
    batch,
    completion,
    dialogue,
    framed,
    framed_body,
    framed_plain,
    group,
    plain_wire,
)

Change = Callable[[dict], object]

PLAIN = encode_batch(batch())


def bent(change: Change) -> bytes:
    """A frame that mallory signed properly around a changed body."""
    wire = plain_wire()
    change(wire)
    return framed(wire)


def _group(wire: dict) -> dict:
    return wire["groups"][0]


def _completion(wire: dict) -> dict:
    return _group(wire)["completions"][0]


def _segment(wire: dict) -> dict:
    return _completion(wire)["segments"][0]


def _tokens(wire: dict) -> dict:
    return _segment(wire)["tokens"]


def of_dictionary(number: int) -> bytes:
    """A frame whose zstd head names a dictionary; 0 is none."""
    packed = bytearray(zstandard.ZstdCompressor().compress(PLAIN))
    packed[4] |= 1  # one byte of dictionary id, behind the descriptor of a single segment
    packed.insert(5, number)
    return framed_body(struct.pack(">BI", 1, len(PLAIN)) + bytes(packed), ALICE)


def zipped(plain: bytes, declared: int, **settings: object) -> bytes:
    packed = zstandard.ZstdCompressor(**settings).compress(plain)
    return framed_body(struct.pack(">BI", 1, declared) + packed)


VALID = {
    "plain": FRAME,
    "zstd": seal(batch(*(group(n) for n in range(4))), ALICE, SWARM),
    "zstd with a checksum": framed_body(
        struct.pack(">BI", 1, len(PLAIN))
        + zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN),
        ALICE,
    ),
    "zstd with a dictionary id of 0": of_dictionary(0),
    "negative zeros": seal(
        replace(
            batch(
                group(
                    0,
                    completion(reward=-0.0, tokens=replace(TOKENS, logprobs=(-0.0, -1.0, 0.0))),
                    completion(),
                )
            ),
            created=-0.0,
        ),
        ALICE,
        SWARM,
        compress=False,
    ),
    "dialogue": seal(batch(group(3, dialogue(), completion())), ALICE, SWARM, compress=False),
    "two families, no tokens": seal(
        batch(
            group(0, completion(tokens=None), completion("", 0.0, None)),
            group(1, completion(tokens=None), completion("\0\n✗", 0.25, None), env="riddles"),
        ),
        ALICE,
        SWARM,
        compress=False,
    ),
    "extreme values": seal(
        replace(
            batch(
                group(
                    15,
                    completion(
                        tokens=Tokens(
                            (0, (1 << 32) - 1), (-65504.0, -5.9604644775390625e-08), (0, MAX_INT)
                        )
                    ),
                    completion(reward=-1e300),
                    level=1,
                )
            ),
            sequence=MAX_INT,
            policy_step=0,
            created=0.0,
            model=" ~" * 64,
            temperature=1000.0,
            max_new_tokens=MAX_INT,
        ),
        ALICE,
        SWARM,
        compress=False,
    ),
}

INVALID = {
    "nothing": (b"", "truncated"),
    "head cut short": (FRAME[:100], "truncated"),
    "another magic": (b"SWARFRM2" + FRAME[8:], "bad_magic"),
    "an announcement": (sign_announcement(announcement(), ALICE, SWARM), "bad_magic"),
    "over the size": (framed_plain(bytes(MANIFEST.max_frame_bytes)), "too_large"),
    "another swarm": (seal(batch(), ALICE, OTHER_SWARM), "wrong_swarm"),
    "moved from another swarm": (
        FRAME[:40] + seal(batch(), ALICE, OTHER_SWARM)[40:],
        "bad_signature",
    ),
    "another domain": (
        envelope.FRAME.magic + envelope.close(envelope.ANNOUNCEMENT, SWARM, ALICE, FRAME[136:])[8:],
        "bad_signature",
    ),
    "another author": (FRAME[:40] + MALLORY.author + FRAME[72:], "bad_signature"),
    "a bit flipped in the signature": (
        FRAME[:72] + bytes([FRAME[72] ^ 1]) + FRAME[73:],
        "bad_signature",
    ),
    "a bit flipped in the last byte": (FRAME[:-1] + bytes([FRAME[-1] ^ 1]), "bad_signature"),
    "a byte more": (FRAME + b"\0", "bad_signature"),
    "small-order author": (FRAME[:40] + bytes(32) + FRAME[72:], "bad_key"),
    "body without its head": (framed_body(b"\0"), "truncated"),
    "unknown compression": (framed_body(struct.pack(">BI", 2, 1) + b"\0"), "bad_compression"),
    "plain length too small": (
        framed_body(struct.pack(">BI", 0, len(PLAIN) - 1) + PLAIN),
        "bad_compression",
    ),
    "zstd length too small": (zipped(PLAIN, len(PLAIN) - 1), "bad_compression"),
    "zstd length too large": (zipped(PLAIN, len(PLAIN) + 1), "bad_compression"),
    "zstd without a length": (
        zipped(PLAIN, len(PLAIN), write_content_size=False),
        "bad_compression",
    ),
    "zstd bomb": (zipped(bytes(1 << 20), 1 << 20), "too_large"),
    "zstd bomb that declares little": (zipped(bytes(1 << 20), 100), "bad_compression"),
    "zstd with a wrong checksum": (
        framed_body(
            struct.pack(">BI", 1, len(PLAIN))
            + zstandard.ZstdCompressor(write_checksum=True).compress(PLAIN)[:-1]
            + b"\0"
        ),
        "bad_compression",
    ),
    "zstd with a dictionary id of 1": (of_dictionary(1), "bad_compression"),
    "not zstd": (framed_body(struct.pack(">BI", 1, 4) + b"1234"), "bad_compression"),
    "skippable zstd frame": (
        framed_body(struct.pack(">BI", 1, 4) + bytes.fromhex("502a4d1804000000") + b"1234"),
        "bad_compression",
    ),
    "body of another kind": (framed([]), "bad_schema"),
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
    "too deep": (bent(lambda w: _tokens(w).update(versions=[[[]]])), "too_deep"),
    "field missing": (bent(lambda w: w.pop("model")), "bad_schema"),
    "field unknown": (bent(lambda w: w.update(more=1)), "bad_schema"),
    "fields reordered": (bent(lambda w: w.update(sequence=w.pop("sequence"))), "bad_schema"),
    "integer for a float": (bent(lambda w: w.update(created=1)), "bad_schema"),
    "model name too long": (bent(lambda w: w.update(model="x" * 129)), "too_large"),
    "model name with an escape": (bent(lambda w: w.update(model="\x1b[2J")), "bad_schema"),
    "encoding digest too short": (bent(lambda w: w.update(encoding=bytes(31))), "bad_schema"),
    "temperature zero": (bent(lambda w: w.update(temperature=0.0)), "bad_schema"),
    "no group": (bent(lambda w: w.update(groups=[])), "bad_schema"),
    "one task twice": (bent(lambda w: w["groups"].append(_group(w))), "bad_schema"),
    "unknown family": (bent(lambda w: _group(w).update(env="lcm")), "bad_schema"),
    "unknown level": (bent(lambda w: _group(w).update(level=2)), "bad_schema"),
    "index over the limit": (bent(lambda w: _group(w).update(index=16)), "bad_schema"),
    "epoch over 63 bits": (bent(lambda w: _group(w).update(epoch=1 << 63)), "bad_schema"),
    "one completion": (bent(lambda w: _group(w)["completions"].pop()), "bad_schema"),
    "five completions": (
        bent(lambda w: _group(w)["completions"].extend([_completion(w)] * 3)),
        "too_many_items",
    ),
    "text over the limit": (bent(lambda w: _segment(w).update(text="x" * 257)), "too_large"),
    "unknown writer": (bent(lambda w: _segment(w).update(writer=2)), "bad_schema"),
    "tokens of the environment": (bent(lambda w: _segment(w).update(writer=1)), "bad_schema"),
    "unknown finish": (bent(lambda w: _completion(w).update(finish=2)), "bad_schema"),
    "no segment": (bent(lambda w: _completion(w).update(segments=[])), "bad_schema"),
    "ids of half a word": (bent(lambda w: _tokens(w).update(ids=bytes(10))), "bad_schema"),
    "no ids": (bent(lambda w: _tokens(w).update(ids=b"")), "bad_schema"),
    "log-probs of another length": (
        bent(lambda w: _tokens(w).update(logprobs=bytes(4))),
        "bad_schema",
    ),
    "log-prob NaN": (
        bent(lambda w: _tokens(w).update(logprobs=b"\x00\x7e" * 3)),
        "bad_schema",
    ),
    "log-prob above zero": (
        bent(lambda w: _tokens(w).update(logprobs=b"\x00\x3c" * 3)),
        "bad_schema",
    ),
    "runs of versions too short": (
        bent(lambda w: _tokens(w).update(versions=[7, 2])),
        "bad_schema",
    ),
    "run of versions too long": (
        bent(lambda w: _tokens(w).update(versions=[7, MAX_INT])),
        "bad_schema",
    ),
    "two runs of one version": (
        bent(lambda w: _tokens(w).update(versions=[7, 1, 7, 2])),
        "bad_schema",
    ),
}
