"""Groups in the journal and the replay buffer, packed rows, and task references.

A row stores the author's encoding, with log-probs as binary16, and what this node adds. Unpacking
anything else raises :class:`protocol.errors.ProtocolError`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from protocol import codec
from protocol.announcement import heldout_seed, task_seed
from protocol.codec import CodecLimits, decode, encode
from protocol.errors import BadSchema
from protocol.rollout import (
    ENCODING_BYTES,
    MAX_PLAIN_BYTES,
    MODEL_BYTES,
    TEMPERATURES,
    EncodedGroup,
    Group,
    decode_group,
    encode_group,
)


@dataclass(frozen=True, slots=True)
class Origin:
    """Fields that all groups of one :class:`protocol.rollout.Batch` share."""

    policy_step: int
    model: str
    encoding: bytes
    temperature: float
    max_new_tokens: int


class GroupKey(NamedTuple):
    """Key of one group in a swarm; ``number`` is its ``index`` (a name tuples use)."""

    author: bytes
    epoch: int
    number: int


def informative(rewards: Sequence[float]) -> bool:
    """Return whether any two rewards differ, so that group advantages are not zero."""
    return len(set(rewards)) > 1


@dataclass(slots=True)
class Mean:
    """Sum of a value, such as the mean reward, over ``groups`` groups."""

    groups: float = 0
    total: float = 0.0

    def add(self, other: Mean) -> None:
        self.groups += other.groups
        self.total += other.total

    def fade(self, factor: float) -> None:
        """Let what was added count less than what will be."""
        self.groups *= factor
        self.total *= factor

    @property
    def value(self) -> float | None:
        return self.total / self.groups if self.groups else None


@dataclass(frozen=True, slots=True)
class Candidate:
    """The replay buffer's description of a group before it is consumed."""

    key: GroupKey
    env: str
    level: int
    rewards: tuple[float, ...]  # this node's own verification result, one per completion
    policy_step: int
    received: float  # Unix time of admission here, seconds
    uses: int = 0

    @property
    def informative(self) -> bool:
        return informative(self.rewards)


@dataclass(frozen=True, slots=True)
class PooledGroup:
    """A peer's group that passed admission.

    Its token ids are claims: before training, check that they decode to the scored text.
    """

    author: bytes
    encoded: bytes  # the group as its author encoded it, with the rewards it claims
    group: Group  # the group with this node's own rewards
    prompt: str  # the question as this node's verifier rebuilt it
    encoding: bytes
    policy_step: int
    received: float  # Unix time of admission here, seconds

    @property
    def key(self) -> GroupKey:
        return GroupKey(self.author, self.group.epoch, self.group.index)

    @property
    def candidate(self) -> Candidate:
        group = self.group
        return Candidate(
            self.key, group.env, group.level, group.rewards, self.policy_step, self.received
        )


_SIZE = 2 * MAX_PLAIN_BYTES
ROW_LIMITS = CodecLimits(_SIZE, depth=2, items=1 << 16, str_len=_SIZE, bin_len=_SIZE)


def pack_pooled(pooled: PooledGroup) -> bytes:
    """Encode a replay buffer group without its author and its time of receipt."""
    rewards = list(pooled.group.rewards)
    return encode([pooled.prompt, pooled.encoding, pooled.policy_step, rewards, pooled.encoded])


def unpack_pooled(author: bytes, received: float, data: bytes) -> PooledGroup:
    """Decode what :func:`pack_pooled` returns."""
    wire = codec.items(decode(data, ROW_LIMITS), "row of the pool", 5, 5)
    prompt, encoding, step, rewards, plain = wire
    encoded = _encoded(plain)
    group = decode_group(encoded)
    count = len(group.completions)
    scores = [codec.real(item, "reward") for item in codec.items(rewards, "rewards", count, count)]
    return PooledGroup(
        author=author,
        encoded=encoded,
        group=rewarded(group, scores),
        prompt=codec.text(prompt, "prompt", _SIZE),
        encoding=codec.blob(encoding, "encoding", ENCODING_BYTES),
        policy_step=codec.integer(step, "policy_step"),
        received=received,
    )


def rewarded(group: Group, rewards: Sequence[float]) -> Group:
    """Return the same group with these rewards, one per completion."""
    pairs = zip(group.completions, rewards, strict=True)
    return replace(group, completions=tuple(replace(c, reward=reward) for c, reward in pairs))


def pack_waiting(group: Group, origin: Origin) -> bytes:
    """Encode a local group, once, and what its frame will state about it."""
    fields = [origin.policy_step, origin.model, origin.encoding]
    data = encode([*fields, float(origin.temperature), origin.max_new_tokens, encode_group(group)])
    unpack_waiting(data)
    return data


def unpack_waiting(data: bytes) -> tuple[EncodedGroup, Origin]:
    """Decode what :func:`pack_waiting` returns."""
    wire = codec.items(decode(data, ROW_LIMITS), "waiting group", 6, 6)
    step, model, encoding, temperature, length, plain = wire
    origin = Origin(
        codec.integer(step, "policy_step"),
        codec.label(model, "model", MODEL_BYTES),
        codec.blob(encoding, "encoding", ENCODING_BYTES),
        codec.real(temperature, "temperature", *TEMPERATURES),
        codec.integer(length, "max_new_tokens", 1),
    )
    return EncodedGroup.decoded(_encoded(plain)), origin


def pack_rewards(rewards: Sequence[float]) -> bytes:
    """Encode rewards as little-endian float64 words."""
    return struct.pack(f"<{len(rewards)}d", *rewards)


def unpack_rewards(data: bytes) -> tuple[float, ...]:
    """Decode what :func:`pack_rewards` returns."""
    return struct.unpack(f"<{len(data) // 8}d", data)


def _encoded(group: object) -> bytes:
    if not isinstance(group, bytes):
        raise BadSchema(f"group: expected bytes, got {type(group).__name__}")
    return group


class Split(Enum):
    """The set of questions that a task is drawn from."""

    TRAIN = "train"
    HELDOUT = "heldout"


@dataclass(frozen=True, slots=True)
class TaskRef:
    """Reference to one task; ``seed`` is the 63-bit seed of its instance."""

    env: str
    level: int
    seed: int
    split: Split = Split.TRAIN

    @classmethod
    def shared(cls, author: bytes, env: str, level: int, epoch: int, index: int) -> TaskRef:
        """Derive the task of an author's sample ``index`` in a time slot."""
        return cls(env, level, task_seed(author, epoch, index))

    @classmethod
    def heldout(cls, env: str, level: int, number: int) -> TaskRef:
        """Derive the held-out task ``number``, which training never samples."""
        return cls(env, level, heldout_seed(env, number), Split.HELDOUT)
