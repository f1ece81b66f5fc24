"""What one round did, before it is turned into a record."""

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
    """One round.

    Attributes:
        external_wanted: external groups that the update had room for.
        trained: groups in the update, own and external.
        proven: authors with standing when they were chosen.
        lead: how far peers were ahead; see :class:`swarm.mixture.peer_advantage.PeersLead`.
        emptied: external groups that were chosen and of which nothing was left to learn from.
        scripted_tokens: written along the trajectories of others.
    """

    round: int
    policy_step: int
    own: tuple[OwnGroup, ...]
    external: tuple[PooledGroup, ...]
    update: UpdateStats
    evaluation: float | None
    seconds: dict[str, float]
    external_wanted: int
    trained: int = 0
    proven: frozenset[bytes] = frozenset()
    lead: float | None = None
    emptied: tuple[PooledGroup, ...] = ()
    scripted_tokens: int = 0

    @property
    def generated(self) -> int:
        """Tokens that the policy wrote."""
        return sum(group.tokens for group in self.own) + self.scripted_tokens

    @property
    def author_share(self) -> float | None:
        """Of the update's groups, those of the external author with most of them; None of none."""
        authors = Counter(pooled.author for pooled in self.external)
        return max(authors.values(), default=0) / self.trained if self.trained else None

    @property
    def useful(self) -> dict[str, float]:
        """By external author, the public key in hex, how useful its groups were together."""
        found: defaultdict[str, float] = defaultdict(float)
        for pooled, value in zip(self.external, self.update.useful, strict=False):
            found[pooled.author.hex()] += value if math.isfinite(value) else 0.0
        return dict(found)

    @property
    def newcomer_share(self) -> float | None:
        """Of the update's groups, those of authors without standing; None of none."""
        strangers = sum(pooled.author not in self.proven for pooled in self.external)
        return strangers / self.trained if self.trained else None


def earned(external: Sequence[PooledGroup], useful: Sequence[float]) -> list[tuple[bytes, float]]:
    """Authors of an update's external groups, and how useful each of those was.

    A group without advantage says nothing about its author.
    """
    return [
        (pooled.author, value)
        for pooled, value in zip(external, useful, strict=True)
        if pooled.candidate.informative
    ]


@dataclass(frozen=True, slots=True)
class Rules:
    """What a round does around its mixture. Nodes keep to the defaults; experiments switch single
    rules off to see what they are worth.

    Attributes:
        fill: own groups replace external ones that the pool lacks.
        discard: groups of equal rewards are neither shared nor taken.
        keep: train on at most so many own groups, informative ones only; 0 takes all own groups.
    """

    fill: bool = True
    discard: bool = True
    keep: int = 0

    def shared(self, own: Sequence[OwnGroup]) -> list[Group]:
        """What of its own groups a node publishes."""
        return [each.group for each in own if each.informative or not self.discard]

    def trained(self, own: Sequence[OwnGroup]) -> Sequence[OwnGroup]:
        """What of its own groups a node learns from."""
        return [each for each in own if each.informative][: self.keep] if self.keep else own
