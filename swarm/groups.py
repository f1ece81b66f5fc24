"""Groups as bytes in the journal: each as its author encoded it, and what is added to it.

Log-probs are therefore kept as binary16, which is what every reader of a frame gets.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from protocol import codec
from protocol.announcement import task_seed
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


@dataclass(frozen=True, slots=True)
class Origin:
    """What all groups of one :class:`protocol.rollout.Batch` have in common.

    Attributes:
        policy_step: the policy version that wrote the group.
        model: name of the model, for people.
        encoding: 32-byte encoding digest.
        temperature: of the sampling distribution.
        max_new_tokens: length cap in force.
    """

    policy_step: int
    model: str
    encoding: bytes
    temperature: float
    max_new_tokens: int


class GroupKey(NamedTuple):
    """Names one group in a swarm: each author uses each draw of an epoch once.

    ``number`` is the group's ``index``, a name that tuples keep for themselves.
    """

    author: bytes
    epoch: int
    number: int


def informative(rewards: Sequence[float]) -> bool:
    """Whether group advantages differ from zero, which they do when any two rewards differ."""
    return len(set(rewards)) > 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the pool tells of a group before it is consumed.

    Attributes:
        key: names the group.
        env: task family.
        level: index into its levels.
        rewards: this node's own verdict, one a completion.
        policy_step: the author's policy version when the batch was sealed.
        received: unix time of admission here, seconds.
        uses: updates that it was part of.
    """

    key: GroupKey
    env: str
    level: int
    rewards: tuple[float, ...]
    policy_step: int
    received: float
    uses: int = 0

    @property
    def informative(self) -> bool:
        """Whether it has any advantage to learn from."""
        return informative(self.rewards)


@dataclass(frozen=True, slots=True)
class PooledGroup:
    """An external group that passed admission.

    Token ids inside it are the author's word: they may differ from the text that was scored, so
    whoever trains on them checks first that they decode to it.

    Attributes:
        author: raw Ed25519 public key, 32 bytes.
        told: the group as its author encoded it, with the rewards that he claims.
        group: its completions carry this node's own rewards.
        prompt: the question as this node's judge rebuilt it.
        encoding: the author's 32-byte encoding digest.
        policy_step: the author's policy version when the batch was sealed.
        received: unix time of admission here, seconds.
    """

    author: bytes
    told: bytes
    group: Group
    prompt: str
    encoding: bytes
    policy_step: int
    received: float

    @property
    def key(self) -> GroupKey:
        """Names the group."""
        return GroupKey(self.author, self.group.epoch, self.group.index)

    @property
    def candidate(self) -> Candidate:
        """The short entry for this group."""
        group = self.group
        return Candidate(
            self.key, group.env, group.level, group.rewards, self.policy_step, self.received
        )


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


class Split(Enum):
    """Which questions a task may be drawn from."""

    TRAIN = "train"
    HELDOUT = "heldout"


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The coordinates of one task.

    Attributes:
        env: name of a task family in the manifest's catalogue.
        level: index into that family's levels.
        seed: the 63-bit number that the instance is drawn with.
        split: what it is for.
    """

    env: str
    level: int
    seed: int
    split: Split = Split.TRAIN

    @classmethod
    def shared(cls, author: bytes, env: str, level: int, epoch: int, index: int) -> TaskRef:
        """The task of an author's ``index`` in an epoch, as everybody derives it."""
        return cls(env, level, task_seed(author, epoch, index))
