"""The plain body of a frame: a batch of groups as canonical msgpack maps."""

from __future__ import annotations

from protocol import schema
from protocol.codec import Limits, decode, encode
from protocol.errors import BadSchema
from protocol.limits import (
    MAX_COMPLETIONS,
    MAX_FRAME_BYTES,
    MAX_GROUPS,
    MAX_ITEMS,
    MAX_SEGMENTS,
    PLAIN_RATIO,
)
from protocol.rollout import Batch, Completion, Finish, Group, Segment, Writer
from protocol.tokens import tokens_from_wire, tokens_to_wire

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
    values = schema.fields(wire, _BATCH, "batch")
    sequence, step, created, model, encoding, temperature, length, groups = values
    batch = Batch(
        sequence=schema.integer(sequence, "sequence"),
        policy_step=schema.integer(step, "policy_step"),
        created=schema.real(created, "created", 0.0, 2.0**40),
        model=schema.label(model, "model", MODEL_BYTES),
        encoding=schema.blob(encoding, "encoding", ENCODING_BYTES),
        temperature=schema.real(temperature, "temperature", *TEMPERATURES),
        max_new_tokens=schema.integer(length, "max_new_tokens", 1),
        groups=tuple(map(_group, schema.items(groups, "groups", MAX_GROUPS, least=1))),
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
    env, level, epoch, index, completions = schema.fields(wire, _GROUP, "group")
    entries = schema.items(completions, "completions", MAX_COMPLETIONS, least=2)
    return Group(
        env=schema.label(env, "env", 64),
        level=schema.integer(level, "level"),
        epoch=schema.integer(epoch, "epoch"),
        index=schema.integer(index, "index"),
        completions=tuple(map(_completion, entries)),
    )


def _completion(wire: object) -> Completion:
    segments, reward, finish = schema.fields(wire, _COMPLETION, "completion")
    return Completion(
        tuple(map(_segment, schema.items(segments, "segments", MAX_SEGMENTS, least=1))),
        schema.real(reward, "reward"),
        Finish(schema.integer(finish, "finish", 0, 1)),
    )


def _segment(wire: object) -> Segment:
    writer, text, tokens = schema.fields(wire, _SEGMENT, "segment")
    who = Writer(schema.integer(writer, "writer", 0, 1))
    if tokens is not None and who is not Writer.POLICY:
        raise BadSchema("segment: only the policy's segments carry tokens")
    return Segment(
        who,
        schema.text(text, "text", MAX_PLAIN_BYTES),
        None if tokens is None else tokens_from_wire(tokens),
    )
