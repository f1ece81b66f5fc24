"""How many authors a swarm has, from a few shards of it: what the depth of announcements follows.

Nobody counts the swarm. A node counts the authors that announced along two paths of the previous
epoch. Whoever stands at depth d stands for 2^d authors, as one in 2^d paths leads there: the sum is
without bias whatever depths they chose, so nodes whose guesses differ a little still meet.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from statistics import fmean, median

from protocol.codec import MAX_DEPTH
from protocol.keys import depth_for

COUNTS_KEPT = 3
LARGEST_STEP = 1.0
"""Depths by which a node moves in an epoch: what one odd count can do to it."""

ALL_DEPTHS = tuple(range(MAX_DEPTH + 1))

Path = Mapping[int, Collection[bytes]]
"""Authors found along one path, by depth."""


def authors_along(path: Path) -> float:
    """Authors in the whole swarm, by those along one path.

    One who stands at several depths counts once, at the least of them.
    """
    seen: set[bytes] = set()
    total = 0.0
    for depth in sorted(path):
        found = set(path[depth]) - seen
        seen |= found
        total += len(found) * 2.0**depth
    return total


class Density:
    """What one node takes for the depth of its swarm, epoch by epoch.

    Attributes:
        depth: that suits the swarm, from 0 to :data:`protocol.codec.MAX_DEPTH`.
    """

    def __init__(self) -> None:
        self.depth = 0.0
        self._counts: deque[float] = deque(maxlen=COUNTS_KEPT)

    @property
    def known(self) -> bool:
        """Whether anything was counted yet."""
        return bool(self._counts)

    @property
    def estimated(self) -> int | None:
        """Authors of the swarm, where they are too many for a node to look at them all."""
        return round(median(self._counts)) if self._counts and self.depth else None

    def depths(self) -> tuple[int, ...]:
        """The whole depths at which authors are to be found: 0 alone, or the two around ``depth``.

        Two where ``depth`` is a whole number as well, for others count a few more or fewer.
        """
        low = math.floor(self.depth)
        return (low, low + 1) if 0.0 < self.depth < MAX_DEPTH else (low,)

    def count(self, paths: Collection[Path]) -> None:
        """Take in what was found along the paths of an epoch at :meth:`depths`.

        The median of the last three counts is believed, one depth an epoch at most.
        """
        self._counts.append(fmean(map(authors_along, paths)))
        suits = depth_for(median(self._counts))
        step = min(max(suits - self.depth, -LARGEST_STEP), LARGEST_STEP)
        self.depth += step

    def sound(self, paths: Collection[Path]) -> None:
        """Take in what was found along the paths of an epoch at :data:`ALL_DEPTHS`.

        A node that knows nothing yet, or is far from where the swarm is, goes there at once. It
        believes the least of its paths, for a single record in the deep counts for thousands.
        """
        least = min(map(authors_along, paths))
        if self.known and abs(depth_for(least) - self.depth) <= LARGEST_STEP:
            self.count(paths)
            return
        self._counts.clear()
        self._counts.append(least)
        self.depth = depth_for(least)
