"""What was seen over time: fine of late, coarse of long ago, in a bounded number of buckets."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from swarm.census.authors import Mean, take_all
from swarm.common.util import t95

TEN_MINUTES, DAY = 600, 86_400
HOUR = 3600
FINE_SECONDS = 2 * DAY
HOURLY_SECONDS = 60 * DAY
MOST = 5_500
"""Buckets kept: ten years of days, sixty days of hours and two days of ten minutes."""


@dataclass(slots=True)
class Bucket:
    """A stretch of time.

    Attributes:
        start: unix time, seconds.
        seconds: its length.
        looks: taken at the swarm.
        nodes: that were there, summed over the looks.
        joined: who came, or came back.
        left: who went.
        offered, checked, verified, refused: groups.
        rewards: verified, by family.
    """

    start: int
    seconds: int = TEN_MINUTES
    looks: int = 0
    nodes: int = 0
    joined: int = 0
    left: int = 0
    offered: int = 0
    checked: int = 0
    verified: int = 0
    refused: int = 0
    rewards: dict[str, Mean] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """Unix time, seconds."""
        return self.start + self.seconds

    def take(self, other: Bucket) -> None:
        """Count what another one has counted."""
        self.looks += other.looks
        self.nodes += other.nodes
        self.joined += other.joined
        self.left += other.left
        self.offered += other.offered
        self.checked += other.checked
        self.verified += other.verified
        self.refused += other.refused
        take_all(self.rewards, other.rewards)


def bucket_at(now: float) -> Bucket:
    """An empty one of ten minutes that unix time ``now`` lies in."""
    return Bucket(int(now // TEN_MINUTES) * TEN_MINUTES)


def record(buckets: list[Bucket], news: Bucket) -> None:
    """Add what was seen in the present ten minutes.

    A clock that is put back loses nothing: what was noted of a time that is yet to come counts as
    of now.

    Args:
        buckets: ascending and apart from each other, which they stay.
        news: of :func:`bucket_at` the present time.
    """
    if buckets and buckets[-1].start <= news.start < buckets[-1].end:
        buckets[-1].take(news)
        return
    buckets[:] = _thinned([*buckets, news], news.start)[-MOST:]


def _thinned(buckets: Iterable[Bucket], now: int) -> list[Bucket]:
    kept: list[Bucket] = []
    for bucket in buckets:
        start, seconds = _place(bucket, now)
        if kept and kept[-1].end > start:
            kept[-1].take(bucket)
        else:
            kept.append(replace(bucket, start=start, seconds=seconds))
    return kept


def _place(bucket: Bucket, now: int) -> tuple[int, int]:
    """Where a bucket lies from now on, and how long it is."""
    for seconds, age in ((DAY, HOURLY_SECONDS), (HOUR, FINE_SECONDS)):
        start = bucket.start // seconds * seconds
        if bucket.seconds <= seconds and start + seconds <= now - age:
            return start, seconds
    if bucket.start > now:
        return now, TEN_MINUTES
    return bucket.start, bucket.seconds


Column = list[float | None]


def columns(buckets: Sequence[Bucket]) -> dict[str, Column]:
    """The buckets as columns of equal length; None where nobody looked."""
    found: dict[str, Column] = {
        name: [getattr(bucket, name) for bucket in buckets]
        for name in ("seconds", "joined", "left", "offered", "checked", "verified", "refused")
    }
    found["time"] = [bucket.start for bucket in buckets]
    found["nodes"] = [b.nodes / b.looks if b.looks else None for b in buckets]
    return found


def rewards(buckets: Sequence[Bucket]) -> dict[str, list[float | None]]:
    """Mean verified rewards by family, as :func:`columns`; None where nothing was verified."""
    return {
        family: [b.rewards[family].value if family in b.rewards else None for b in buckets]
        for family in sorted({family for bucket in buckets for family in bucket.rewards})
    }


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
