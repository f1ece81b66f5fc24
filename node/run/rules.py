"""Single rules of a round that an experiment may switch off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from node.rollout.groups import OwnGroup
from protocol.rollout import Group


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
