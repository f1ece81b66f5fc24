"""Groups as bytes in the journal: each as its author encoded it, and what is added to it.

Log-probs are therefore kept as binary16, which is what every reader of a frame gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace

from protocol import codec
from protocol.codec import Limits, decode, encode
from protocol.errors import BadSchema
from protocol.rollout import (
    ENCODING_BYTES,
    MAX_PLAIN_BYTES,
    MODEL_BYTES,
    TEMPERATURES,
    Group,
    decode_group,
    encode_group,
)
from swarm.origin import Origin
from swarm.pooled_group import PooledGroup

_SIZE = 2 * MAX_PLAIN_BYTES
ROW_LIMITS = Limits(_SIZE, depth=2, items=1 << 16, str_len=_SIZE, bin_len=_SIZE)


def pack_pooled(pooled: PooledGroup) -> bytes:
    """Everything in a pooled group but its author and its time of receipt."""
    rewards = list(pooled.group.rewards)
    return encode([pooled.prompt, pooled.encoding, pooled.policy_step, rewards, pooled.told])


def unpack_pooled(author: bytes, received: float, data: bytes) -> PooledGroup:
    """The pooled group that :func:`pack_pooled` turned into ``data``.

    Raises:
        ProtocolError: for anything else, as in a file that somebody else has written to.
    """
    wire = codec.items(decode(data, ROW_LIMITS), "row of the pool", 5, 5)
    prompt, encoding, step, rewards, told = wire
    plain = as_bytes(told)
    group = decode_group(plain)
    count = len(group.completions)
    own = [codec.real(each, "reward") for each in codec.items(rewards, "rewards", count, count)]
    return PooledGroup(
        author=author,
        told=plain,
        group=rewarded(group, own),
        prompt=codec.text(prompt, "prompt", _SIZE),
        encoding=codec.blob(encoding, "encoding", ENCODING_BYTES),
        policy_step=codec.integer(step, "policy_step"),
        received=received,
    )


def rewarded(group: Group, rewards: Sequence[float]) -> Group:
    """The same group with these rewards, one a completion."""
    pairs = zip(group.completions, rewards, strict=True)
    return replace(group, completions=tuple(replace(c, reward=reward) for c, reward in pairs))


def pack_waiting(group: Group, origin: Origin) -> bytes:
    """An own group and what its frame will say of it.

    Raises:
        ProtocolError: it cannot be put on the wire.
    """
    head = [origin.policy_step, origin.model, origin.encoding]
    row = [*head, float(origin.temperature), origin.max_new_tokens, encode_group(group)]
    data = encode(row)
    unpack_waiting(data)
    return data


def unpack_waiting(data: bytes) -> tuple[Group, Origin]:
    """What :func:`pack_waiting` turned into ``data``.

    Raises:
        ProtocolError: for anything else.
    """
    wire = codec.items(decode(data, ROW_LIMITS), "waiting group", 6, 6)
    step, model, encoding, temperature, length, plain = wire
    origin = Origin(
        codec.integer(step, "policy_step"),
        codec.label(model, "model", MODEL_BYTES),
        codec.blob(encoding, "encoding", ENCODING_BYTES),
        codec.real(temperature, "temperature", *TEMPERATURES),
        codec.integer(length, "max_new_tokens", 1),
    )
    return decode_group(as_bytes(plain)), origin


def pack_rewards(rewards: Sequence[float]) -> bytes:
    """Little-endian float64 words."""
    return struct.pack(f"<{len(rewards)}d", *rewards)


def unpack_rewards(data: bytes) -> tuple[float, ...]:
    """The rewards that :func:`pack_rewards` turned into ``data``."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def as_bytes(group: object) -> bytes:
    """An encoded group, once it is known to be bytes.

    Raises:
        BadSchema: it is something else.
    """
    if not isinstance(group, bytes):
        raise BadSchema(f"group: expected bytes, got {type(group).__name__}")
    return group
