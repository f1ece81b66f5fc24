"""The experience that peers share: groups of completions, each a list of segments.

A group is one task and the completions its author's policy wrote for it. Text is canonical;
token ids, log-probs and policy versions travel along as an option and are worth something only
to a reader whose encoding digest is the author's.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from protocol import codec
from protocol.codec import (
    MAX_COMPLETIONS,
    MAX_FRAME_BYTES,
    MAX_GROUPS,
    MAX_ITEMS,
    MAX_SEGMENTS,
    PLAIN_RATIO,
    Limits,
    decode,
    encode,
)
from protocol.errors import BadSchema


class Writer(IntEnum):
    """Who wrote a segment: the policy (trained on) or an environment (masked)."""

    POLICY = 0
    ENVIRONMENT = 1


class Finish(IntEnum):
    """Why a completion ended: the policy's end-of-sequence token, or the length cap."""

    STOP = 0
    LENGTH = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """How the author's policy wrote one segment, token by token.

    The three tuples have the same length; empty ones stand for a completion that is yet to be
    written, and never travel. A final end-of-sequence token is included where the
    policy sampled it.

    Attributes:
        ids: token ids in the author's vocabulary, each below 2**32.
        logprobs: natural log of the probability of each id under the distribution it was sampled
            from (after temperature); float16 on the wire.
        versions: the author's policy step that each token was sampled under.
    """

    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()

    def first(self, count: int) -> Tokens:
        """The first ``count`` of them."""
        return Tokens(self.ids[:count], self.logprobs[:count], self.versions[:count])


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of text by one writer; ``tokens`` only on policy segments, and optional there."""

    writer: Writer
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a task.

    Attributes:
        segments: in order; the ordinary case is one policy segment. In an environment the policy
            and the environment take turns, the policy first and last.
        reward: the author's claim. A reader replaces it with its own verdict.
        finish: why it ended.
    """

    segments: tuple[Segment, ...]
    reward: float
    finish: Finish

    @property
    def text(self) -> str:
        """The policy's own text, environment segments left out."""
        return "".join(s.text for s in self.segments if s.writer is Writer.POLICY)

    @property
    def alternates(self) -> bool:
        """Whether policy and environment take turns, the policy first and last."""
        writers = [segment.writer for segment in self.segments]
        turns = [Writer.ENVIRONMENT if n % 2 else Writer.POLICY for n in range(len(writers))]
        return len(writers) % 2 == 1 and writers == turns


@dataclass(frozen=True, slots=True)
class Group:
    """One task and its completions.

    The task's seed is not carried: every reader derives it from the author's key, ``epoch`` and
    ``index`` (:func:`protocol.announcement.task_seed`), so an author picks the family and the level
    but never the instance.

    Attributes:
        env: name of a task family in the manifest's catalogue.
        level: index into that family's levels.
        epoch: epoch in which the author drew the task.
        index: number of the draw within the epoch, each used once.
        completions: at least two.
    """

    env: str
    level: int
    epoch: int
    index: int
    completions: tuple[Completion, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Claimed rewards, one a completion."""
        return tuple(c.reward for c in self.completions)


@dataclass(frozen=True, slots=True)
class Batch:
    """What one frame carries: groups that one policy wrote.

    Attributes:
        sequence: strictly increasing over an author's life.
        policy_step: the author's policy version when the batch was sealed.
        created: unix time, seconds.
        model: free-form name of the author's model, for people to read.
        encoding: 32-byte digest of tokenizer, chat template and prompt format
            (equal digests mean equal token ids for equal text).
        temperature: of the sampling distribution.
        max_new_tokens: length cap in force.
        groups: at least one.
    """

    sequence: int
    policy_step: int
    created: float
    model: str
    encoding: bytes
    temperature: float
    max_new_tokens: int
    groups: tuple[Group, ...]


_FIELDS = ("ids", "logprobs", "versions")
_LEAST_LOGPROB = -65504.0
_WORD = next(code for code in "IL" if array(code).itemsize == 4)


def tokens_to_wire(tokens: Tokens) -> dict[str, object]:
    """A map of three fields. Log-probs are clamped to what binary16 holds, [-65504, 0].

    Raises:
        BadSchema: lengths differ, or a value is out of range.
    """
    count = len(tokens.ids)
    if not count == len(tokens.logprobs) == len(tokens.versions):
        raise BadSchema("tokens: ids, logprobs and versions differ in length")
    # In this order of arguments a NaN stays one, for the reader's check to find.
    logprobs = [min(max(value, _LEAST_LOGPROB), 0.0) for value in tokens.logprobs]
    runs: list[int] = []
    for version, run in groupby(tokens.versions):
        runs += (version, sum(1 for _ in run))
    try:
        ids = struct.pack(f"<{count}I", *tokens.ids)
    except struct.error as error:
        raise BadSchema(f"token ids: {error}") from error
    return {"ids": ids, "logprobs": struct.pack(f"<{count}e", *logprobs), "versions": runs}


def tokens_from_wire(wire: object) -> Tokens:
    """The inverse of :func:`tokens_to_wire`, up to the rounding of log-probs.

    Raises:
        BadSchema: anything else than what that function writes.
    """
    ids, logprobs, versions = codec.fields(wire, _FIELDS, "tokens")
    if type(ids) is not bytes or not ids or len(ids) % 4:
        raise BadSchema("tokens: ids takes one or more words of 4 bytes")
    count = len(ids) // 4
    words = array(_WORD, ids)
    if sys.byteorder == "big":
        words.byteswap()
    halves = struct.unpack(f"<{count}e", codec.blob(logprobs, "tokens: logprobs", 2 * count))
    # A NaN or an infinity anywhere makes the sum one.
    if not math.isfinite(sum(halves)) or max(halves) > 0.0:
        raise BadSchema("tokens: a log-prob is not a number in [-65504, 0]")
    return Tokens(tuple(words), halves, _expand(versions, count))


def _expand(wire: object, count: int) -> tuple[int, ...]:
    """Runs written out, checked before anything is built."""
    runs = codec.items(wire, "tokens: versions", 2 * count)
    if len(runs) % 2:
        raise BadSchema("tokens: versions takes pairs of version and count")
    pairs: list[tuple[int, int]] = []
    left = count
    for at in range(0, len(runs), 2):
        version = codec.integer(runs[at], "tokens: version")
        length = codec.integer(runs[at + 1], "tokens: run of versions", 1, left)
        if pairs and pairs[-1][0] == version:
            raise BadSchema("tokens: two runs of one version stand side by side")
        pairs.append((version, length))
        left -= length
    if left:
        raise BadSchema(f"tokens: runs of versions leave {left} of {count} tokens out")
    return tuple(version for version, length in pairs for _ in range(length))


MAX_PLAIN_BYTES = PLAIN_RATIO * MAX_FRAME_BYTES
DEPTH = 9
"""Batch, groups, group, completions, completion, segments, segment, tokens, versions."""

ENCODING_BYTES = 32
MODEL_BYTES = 128
TEMPERATURES = (1e-3, 1e3)
"""Least and most."""

_BATCH = (
    "sequence",
    "policy_step",
    "created",
    "model",
    "encoding",
    "temperature",
    "max_new_tokens",
    "groups",
)
_GROUP = ("env", "level", "epoch", "index", "completions")
_COMPLETION = ("segments", "reward", "finish")
_SEGMENT = ("writer", "text", "tokens")


def encode_batch(batch: Batch) -> bytes:
    """The plain body.

    Raises:
        BadEncoding, BadSchema: a value that the format cannot hold.
    """
    return encode(
        {
            "sequence": batch.sequence,
            "policy_step": batch.policy_step,
            "created": float(batch.created),
            "model": batch.model,
            "encoding": batch.encoding,
            "temperature": float(batch.temperature),
            "max_new_tokens": batch.max_new_tokens,
            "groups": [group_to_wire(group) for group in batch.groups],
        }
    )


def decode_batch(plain: bytes, most: int = MAX_PLAIN_BYTES) -> Batch:
    """The batch in a plain body of at most ``most`` bytes.

    Checks all that needs no manifest.

    Raises:
        ProtocolError
    """
    wire = decode(plain, Limits(most, DEPTH, MAX_ITEMS, str_len=most, bin_len=most))
    values = codec.fields(wire, _BATCH, "batch")
    sequence, step, created, model, encoding, temperature, length, groups = values
    batch = Batch(
        sequence=codec.integer(sequence, "sequence"),
        policy_step=codec.integer(step, "policy_step"),
        created=codec.real(created, "created", 0.0, 2.0**40),
        model=codec.label(model, "model", MODEL_BYTES),
        encoding=codec.blob(encoding, "encoding", ENCODING_BYTES),
        temperature=codec.real(temperature, "temperature", *TEMPERATURES),
        max_new_tokens=codec.integer(length, "max_new_tokens", 1),
        groups=tuple(map(_group, codec.items(groups, "groups", MAX_GROUPS, least=1))),
    )
    if len({(group.epoch, group.index) for group in batch.groups}) < len(batch.groups):
        raise BadSchema("groups: one task of the author appears twice")
    return batch


def encode_group(group: Group) -> bytes:
    """A group alone, byte for byte as it stands in the body.

    Raises:
        BadEncoding, BadSchema: a value that the format cannot hold.
    """
    return encode(group_to_wire(group))


def decode_group(plain: bytes) -> Group:
    """The group that :func:`encode_group` turned into ``plain``.

    Raises:
        ProtocolError
    """
    most = MAX_PLAIN_BYTES
    return _group(decode(plain, Limits(most, DEPTH - 2, MAX_ITEMS, str_len=most, bin_len=most)))


def group_to_wire(group: Group) -> dict[str, object]:
    """A group as the map that stands in the body."""
    return {
        "env": group.env,
        "level": group.level,
        "epoch": group.epoch,
        "index": group.index,
        "completions": [_completion_to_wire(completion) for completion in group.completions],
    }


def _completion_to_wire(completion: Completion) -> dict[str, object]:
    segments = [
        {
            "writer": int(segment.writer),
            "text": segment.text,
            "tokens": None if segment.tokens is None else tokens_to_wire(segment.tokens),
        }
        for segment in completion.segments
    ]
    return {
        "segments": segments,
        "reward": float(completion.reward),
        "finish": int(completion.finish),
    }


def _group(wire: object) -> Group:
    env, level, epoch, index, completions = codec.fields(wire, _GROUP, "group")
    entries = codec.items(completions, "completions", MAX_COMPLETIONS, least=2)
    return Group(
        env=codec.label(env, "env", 64),
        level=codec.integer(level, "level"),
        epoch=codec.integer(epoch, "epoch"),
        index=codec.integer(index, "index"),
        completions=tuple(map(_completion, entries)),
    )


def _completion(wire: object) -> Completion:
    segments, reward, finish = codec.fields(wire, _COMPLETION, "completion")
    return Completion(
        tuple(map(_segment, codec.items(segments, "segments", MAX_SEGMENTS, least=1))),
        codec.real(reward, "reward"),
        Finish(codec.integer(finish, "finish", 0, 1)),
    )


def _segment(wire: object) -> Segment:
    writer, text, tokens = codec.fields(wire, _SEGMENT, "segment")
    who = Writer(codec.integer(writer, "writer", 0, 1))
    if tokens is not None and who is not Writer.POLICY:
        raise BadSchema("segment: only the policy's segments carry tokens")
    return Segment(
        who,
        codec.text(text, "text", MAX_PLAIN_BYTES),
        None if tokens is None else tokens_from_wire(tokens),
    )
