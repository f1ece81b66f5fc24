"""Which groups were published, and which of them another node used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from protocol.codec import MAX_OFFERS
from swarm.groups import GroupKey

YOUNG = MAX_OFFERS
"""Epochs whose groups are still on offer when the simulation ends, with a frame an epoch."""


class Ledger:
    """Groups of the whole swarm, by the epoch that they were drawn in."""

    def __init__(self) -> None:
        self._published: defaultdict[int, int] = defaultdict(int)
        self._used: defaultdict[int, set[GroupKey]] = defaultdict(set)

    def publish(self, epoch: int, groups: int) -> None:
        """Note groups on their way out."""
        self._published[epoch] += groups

    def use(self, keys: Iterable[GroupKey]) -> None:
        """Note groups that a learner used."""
        for key in keys:
            self._used[key.epoch].add(key)

    def taken(self) -> float | None:
        """Part of the published groups that anybody used; None where none is old enough."""
        old = sorted(self._published)[:-YOUNG]
        published = sum(self._published[epoch] for epoch in old)
        used = sum(len(self._used[epoch]) for epoch in old)
        return used / published if published else None
