"""An admitted external group, whole and as the short entry that selection looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from protocol.rollout import Group


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
