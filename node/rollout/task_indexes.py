"""Which tasks a node may roll out next: indexes of the running epoch, none of them twice."""

from __future__ import annotations

import random

from protocol.keys import epoch_of
from swarm.common.clock import Clock
from swarm.journal import Journal

PRIVATE = range(1 << 31, 1 << 32)
"""Indexes above every manifest's limit: their groups are trained on and never shared."""


class TaskIndexes:
    """Hands out ``(epoch, index)`` pairs; the journal remembers them across any crash.

    Args:
        journal: keeps the next index of each epoch.
        clock: tells the epoch.
        epoch_seconds: of the swarm's manifest.
        limit: how many an author has in an epoch, by the manifest. A node that needs more goes on
            with private ones.
        rng: picks private indexes.
    """

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        epoch_seconds: float,
        limit: int,
        rng: random.Random,
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._epoch_seconds = epoch_seconds
        self._limit = limit
        self._rng = rng

    def take(self, count: int) -> list[tuple[int, int]]:
        """The next ``count`` pairs."""
        epoch = epoch_of(self._clock.time(), self._epoch_seconds)
        shared = list(self._journal.next_indexes(epoch, count, self._limit))
        private = [self._rng.choice(PRIVATE) for _ in range(count - len(shared))]
        return [(epoch, index) for index in shared + private]

    def shareable(self, index: int) -> bool:
        """Whether peers accept a group of this index."""
        return index < self._limit
