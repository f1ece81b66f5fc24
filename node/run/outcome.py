"""What one round did, and the rules around its batch composition."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from node.learner.update_stats import UpdateStats
from node.rollout.groups import OwnGroup
from protocol.rollout import Group
from swarm.groups import PooledGroup


@dataclass(frozen=True, slots=True)
class Outcome:
    """One round, before it becomes a record."""

    round: int
    policy_step: int
    own: tuple[OwnGroup, ...]
    external: tuple[PooledGroup, ...]
    update: UpdateStats
    evaluation: float | None
    seconds: dict[str, float]
    external_wanted: int  # peer groups that the update had room for
    trained: int = 0  # groups in the update, local and peer
    proven: frozenset[bytes] = frozenset()  # authors with reputation at the choice of groups
    lead: float | None = None  # see :class:`swarm.peer_advantage.PeersLead`
    emptied: tuple[PooledGroup, ...] = ()  # chosen, but nothing was left to learn from
    scripted_tokens: int = 0  # generated along the trajectories of peers

    @property
    def generated(self) -> int:
        return sum(group.tokens for group in self.own) + self.scripted_tokens

    @property
    def author_share(self) -> float | None:
        """Largest share of one peer author in the update; None without groups."""
        authors = Counter(pooled.author for pooled in self.external)
        return max(authors.values(), default=0) / self.trained if self.trained else None

    @property
    def useful(self) -> dict[str, float]:
        """Usefulness of the groups together, by peer author (public key in hex)."""
        found: defaultdict[str, float] = defaultdict(float)
        for pooled, value in zip(self.external, self.update.useful, strict=False):
            found[pooled.author.hex()] += value if math.isfinite(value) else 0.0
        return dict(found)

    @property
    def unproven_share(self) -> float | None:
        """Share of unproven authors in the update; None without groups."""
        strangers = sum(pooled.author not in self.proven for pooled in self.external)
        return strangers / self.trained if self.trained else None


def earned(external: Sequence[PooledGroup], useful: Sequence[float]) -> list[tuple[bytes, float]]:
    """Return author and usefulness of each peer group that has an advantage."""
    return [
        (pooled.author, value)
        for pooled, value in zip(external, useful, strict=True)
        if pooled.candidate.informative
    ]


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of a round; experiments switch single ones off, nodes use the defaults."""

    fill: bool = True  # local groups replace peer groups that the replay buffer lacks
    discard: bool = True  # groups of equal rewards are neither shared nor taken
    keep: int = 0  # maximum local groups to train on, informative ones only; 0 takes all

    def shared(self, own: Sequence[OwnGroup]) -> list[Group]:
        """Return the local groups that a node publishes."""
        return [each.group for each in own if each.informative or not self.discard]

    def trained(self, own: Sequence[OwnGroup]) -> Sequence[OwnGroup]:
        """Return the local groups that a node learns from."""
        return [each for each in own if each.informative][: self.keep] if self.keep else own
