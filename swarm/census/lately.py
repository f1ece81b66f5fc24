"""Verified rewards of the last day by family and level, and how far they can be trusted."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from swarm.census.mean import Mean
from swarm.common.student import t95

HOUR = 3600
HOURS = 24
MOST_IN_AN_HOUR = 1_000
"""Authors, families and levels of one hour that are kept apart; what comes then counts together, as
of one more author, so that an interval is wider rather than too narrow."""
OTHERS = ""

Cells = dict[str, dict[int, dict[str, Mean]]]
"""By family, level and author."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean verified reward of a family's level.

    Attributes:
        groups: that were verified.
        reward: the mean of their means, in [0, 1].
        low, high: a 95 % interval; None where fewer than two authors gave any.
    """

    env: str
    level: int
    groups: int
    reward: float
    low: float | None
    high: float | None


@dataclass(slots=True)
class Lately:
    """Sums by the hour in which groups were verified.

    Attributes:
        hours: by the number of the hour since 1970.
    """

    hours: dict[int, Cells] = field(default_factory=dict)

    def add(self, now: float, env: str, level: int, author: str, reward: float) -> None:
        """Count a group that was verified at unix time ``now``."""
        hour = int(now // HOUR)
        cells = self.hours.setdefault(hour, {})
        levels = cells.setdefault(env, {})
        authors = levels.setdefault(level, {})
        if author not in authors and _size(cells) >= MOST_IN_AN_HOUR:
            author = OTHERS
        authors.setdefault(author, Mean()).take(Mean(1, reward))

    def forget(self, now: float) -> None:
        """Drop the hours that are no part of the last day, those to come included."""
        hour = int(now // HOUR)
        self.hours = {at: cells for at, cells in self.hours.items() if hour - HOURS < at <= hour}

    def estimates(self) -> list[Estimate]:
        """Of each family and level, in order."""
        whole: dict[tuple[str, int], dict[str, Mean]] = {}
        for cells in self.hours.values():
            for env, levels in cells.items():
                for level, authors in levels.items():
                    into = whole.setdefault((env, level), {})
                    for author, mean in authors.items():
                        into.setdefault(author, Mean()).take(mean)
        return [_estimate(*place, whole[place].values()) for place in sorted(whole)]


def _size(cells: Cells) -> int:
    return sum(len(authors) for levels in cells.values() for authors in levels.values())


def _estimate(env: str, level: int, authors: Collection[Mean]) -> Estimate:
    """Groups of one author are alike, so authors are what varies (cluster-robust variance of a
    mean, Liang and Zeger 1986, with the correction for few clusters)."""
    groups = sum(mean.groups for mean in authors)
    reward = sum(mean.total for mean in authors) / groups
    count = len(authors)
    if count < 2:
        return Estimate(env, level, groups, reward, None, None)
    squares = sum((mean.total - mean.groups * reward) ** 2 for mean in authors)
    error = math.sqrt(squares * count / (count - 1)) / groups
    half = error * t95(count - 1)
    return Estimate(env, level, groups, reward, max(0.0, reward - half), min(1.0, reward + half))
