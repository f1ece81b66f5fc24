"""Groups of completions that peers share, and their wire format.

A group is one task and its completions, each a list of segments. Text is canonical; token ids,
log-probs and policy versions serve only readers with the author's encoding digest. Decoders raise
``ProtocolError`` for invalid data, encoders ``BadEncoding`` or ``BadSchema``.
"""

from __future__ import annotations

import math
import struct
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

from protocol import codec
from protocol.errors import BadSchema


class Writer(IntEnum):
    """Author of a segment: the policy (trained on) or an environment (masked)."""

    POLICY = 0
    ENVIRONMENT = 1


class Finish(IntEnum):
    """Why a completion ended: the EOS token, or the length cap."""

    STOP = 0
    LENGTH = 1


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one segment as the policy sampled them, a sampled EOS included.

    The three tuples have the same length. Empty ones are not generated yet and never sent.
    """

    ids: tuple[int, ...] = ()  # token ids in the author's vocabulary, each below 2**32
    # Natural log-probability of each id as sampled (after temperature); float16 on the wire.
    logprobs: tuple[float, ...] = ()
    versions: tuple[int, ...] = ()  # the author's policy step at which each token was sampled

    def first(self, count: int) -> Tokens:
        """Return the first ``count`` tokens."""
        return Tokens(self.ids[:count], self.logprobs[:count], self.versions[:count])


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of text by one writer; only policy segments may have ``tokens``."""

    writer: Writer
    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a task."""

    # Usually one policy segment, else turns with an environment; the policy is first and last.
    segments: tuple[Segment, ...]
    reward: float  # the author's claim; a reader replaces it with its own verification result
    finish: Finish

    @property
    def text(self) -> str:
        """The policy's text, without environment segments."""
        return "".join(s.text for s in self.segments if s.writer is Writer.POLICY)

    @property
    def alternates(self) -> bool:
        """Whether policy and environment alternate, with the policy first and last."""
        writers = [segment.writer for segment in self.segments]
        turns = [Writer.ENVIRONMENT if n % 2 else Writer.POLICY for n in range(len(writers))]
        return len(writers) % 2 == 1 and writers == turns


@dataclass(frozen=True, slots=True)
class Group:
    """One task and its completions.

    Readers derive the task's seed (:func:`protocol.announcement.task_seed`), so an author chooses
    the task family and the difficulty level, but never the instance.
    """

    env: str
    level: int
    epoch: int  # time slot in which the author sampled the task
    index: int  # sample index within the time slot; each is used once
    completions: tuple[Completion, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Claimed rewards, one per completion."""
        return tuple(c.reward for c in self.completions)


@dataclass(frozen=True, slots=True)
class Batch:
    """The contents of one frame: groups that one policy generated."""

    sequence: int  # strictly increasing over an author's lifetime
    policy_step: int
    created: float  # Unix time, seconds
    model: str
    # Digest (32 bytes) of tokenizer, chat template and prompt format; equal: same ids for a text.
    encoding: bytes
    temperature: float
    max_new_tokens: int
    groups: tuple[Group, ...]


MAX_PLAIN_BYTES = codec.PLAIN_RATIO * codec.MAX_FRAME_BYTES
DEPTH = 9  # batch, groups, group, completions, completion, segments, segment, tokens, versions
ENCODING_BYTES = 32
MODEL_BYTES = 128
TEMPERATURES = (1e-3, 1e3)  # minimum and maximum

_BATCH = (
    *("sequence", "policy_step", "created", "model", "encoding"),
    *("temperature", "max_new_tokens", "groups"),
)
_GROUP = ("env", "level", "epoch", "index", "completions")
_COMPLETION = ("segments", "reward", "finish")
_SEGMENT = ("writer", "text", "tokens")
_TOKENS = ("ids", "logprobs", "versions")
_LEAST_LOGPROB = -65504.0
_WORD = next(code for code in "IL" if array(code).itemsize == 4)


def tokens_to_wire(tokens: Tokens) -> dict[str, object]:
    """Encode tokens as a map, with log-probs clamped to binary16's [-65504, 0]."""
    count = len(tokens.ids)
    if not count == len(tokens.logprobs) == len(tokens.versions):
        raise BadSchema("tokens: ids, logprobs and versions differ in length")
    # With this order of arguments NaN stays NaN, so the reader's check finds it.
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
    """Decode what :func:`tokens_to_wire` returns, up to the rounding of log-probs."""
    ids, logprobs, versions = codec.fields(wire, _TOKENS, "tokens")
    if type(ids) is not bytes or not ids or len(ids) % 4:
        raise BadSchema("tokens: ids takes one or more words of 4 bytes")
    count = len(ids) // 4
    token_ids = array(_WORD, ids)
    if sys.byteorder == "big":
        token_ids.byteswap()
    values = struct.unpack(f"<{count}e", codec.blob(logprobs, "tokens: logprobs", 2 * count))
    # The sum is not finite if any value is NaN or infinite.
    if not math.isfinite(sum(values)) or max(values) > 0.0:
        raise BadSchema("tokens: a log-prob is not a number in [-65504, 0]")
    return Tokens(tuple(token_ids), values, _expand(versions, count))


def _expand(wire: object, count: int) -> tuple[int, ...]:
    runs = codec.items(wire, "tokens: versions", 2 * count)
    if len(runs) % 2:
        raise BadSchema("tokens: versions takes pairs of version and count")
    pairs: list[tuple[int, int]] = []
    remaining = count
    for i in range(0, len(runs), 2):
        version = codec.integer(runs[i], "tokens: version")
        length = codec.integer(runs[i + 1], "tokens: run of versions", 1, remaining)
        if pairs and pairs[-1][0] == version:
            raise BadSchema("tokens: two runs of one version stand side by side")
        pairs.append((version, length))
        remaining -= length
    if remaining:
        raise BadSchema(f"tokens: runs of versions leave {remaining} of {count} tokens out")
    return tuple(version for version, length in pairs for _ in range(length))


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """A group and its bytes in a body, so that it is encoded once on its way to the wire."""

    group: Group
    plain: bytes

    @classmethod
    def of(cls, group: Group) -> EncodedGroup:
        return cls(group, encode_group(group))

    @classmethod
    def decoded(cls, plain: bytes) -> EncodedGroup:
        """Decode and check what :func:`encode_group` returned."""
        return cls(decode_group(plain), plain)


def encode_batch(batch: Batch, groups: Sequence[bytes] = ()) -> bytes:
    """Encode the uncompressed body; ``groups`` are its groups if they are encoded already."""
    wire = codec.record(batch, _BATCH)
    wire |= {"created": float(batch.created), "temperature": float(batch.temperature)}
    # The groups are the last field, so an empty array is the last byte.
    prefix = codec.encode(wire | {"groups": []})[:-1]
    return prefix + codec.encode_array(groups or [encode_group(group) for group in batch.groups])


def decode_batch(plain: bytes, most: int = MAX_PLAIN_BYTES) -> Batch:
    """Decode and check an uncompressed body; :func:`check_batch` checks the manifest."""
    wire = codec.decode(
        plain, codec.CodecLimits(most, DEPTH, codec.MAX_ITEMS, str_len=most, bin_len=most)
    )
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
        groups=tuple(map(_group, codec.items(groups, "groups", codec.MAX_GROUPS, least=1))),
    )
    if len({(group.epoch, group.index) for group in batch.groups}) < len(batch.groups):
        raise BadSchema("groups: one task of the author appears twice")
    return batch


def encode_group(group: Group) -> bytes:
    """Encode one group, byte for byte as in the body."""
    completions = [_completion_to_wire(completion) for completion in group.completions]
    return codec.encode(codec.record(group, _GROUP) | {"completions": completions})


def decode_group(plain: bytes) -> Group:
    """Decode what :func:`encode_group` returns."""
    limit = MAX_PLAIN_BYTES
    limits = codec.CodecLimits(limit, DEPTH - 2, codec.MAX_ITEMS, str_len=limit, bin_len=limit)
    return _group(codec.decode(plain, limits))


def _completion_to_wire(completion: Completion) -> dict[str, object]:
    segments = [
        {
            "writer": int(segment.writer),
            "text": segment.text,
            "tokens": None if segment.tokens is None else tokens_to_wire(segment.tokens),
        }
        for segment in completion.segments
    ]
    reward, finish = float(completion.reward), int(completion.finish)
    return {"segments": segments, "reward": reward, "finish": finish}


def _group(wire: object) -> Group:
    env, level, epoch, index, completions = codec.fields(wire, _GROUP, "group")
    entries = codec.items(completions, "completions", codec.MAX_COMPLETIONS, least=2)
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
        tuple(map(_segment, codec.items(segments, "segments", codec.MAX_SEGMENTS, least=1))),
        codec.real(reward, "reward"),
        Finish(codec.integer(finish, "finish", 0, 1)),
    )


def _segment(wire: object) -> Segment:
    writer, text, tokens = codec.fields(wire, _SEGMENT, "segment")
    role = Writer(codec.integer(writer, "writer", 0, 1))
    if tokens is not None and role is not Writer.POLICY:
        raise BadSchema("segment: only the policy's segments carry tokens")
    return Segment(
        role,
        codec.text(text, "text", MAX_PLAIN_BYTES),
        None if tokens is None else tokens_from_wire(tokens),
    )
