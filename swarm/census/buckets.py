"""A swarm's history in buckets that get coarser with age, and recent mean rewards."""

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
MOST = 5_500  # buckets: days of ten years, hours of 60 days, ten minutes of two days
HOURS = 24
# Maximum (family, level, author) cells per hour. Later authors count together as one, which widens
# the interval rather than narrowing it.
MOST_IN_AN_HOUR = 1_000
OTHERS = ""

Column = list[float | None]
Cells = dict[str, dict[int, dict[str, Mean]]]  # by family, level and author


@dataclass(slots=True)
class Bucket:
    """Counts of one time span from unix time ``start``: nodes, then groups."""

    start: int
    seconds: int = TEN_MINUTES
    looks: int = 0  # observations of the swarm
    nodes: int = 0  # present, summed over the looks
    joined: int = 0  # came or returned
    left: int = 0
    offered: int = 0
    checked: int = 0
    verified: int = 0
    refused: int = 0
    rewards: dict[str, Mean] = field(default_factory=dict)  # verified, by task family

    @property
    def end(self) -> int:
        """Unix time, seconds."""
        return self.start + self.seconds

    def take(self, other: Bucket) -> None:
        """Add the counts of another one."""
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
    """Return an empty ten-minute bucket that contains unix time ``now``."""
    return Bucket(int(now // TEN_MINUTES) * TEN_MINUTES)


def record(buckets: list[Bucket], news: Bucket) -> None:
    """Add the counts of the current ten minutes in place; buckets stay ascending, disjoint.

    If the clock was set back, counts of future times move to the current time.
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
    """Return a bucket's new start and length."""
    for seconds, age in ((DAY, HOURLY_SECONDS), (HOUR, FINE_SECONDS)):
        start = bucket.start // seconds * seconds
        if bucket.seconds <= seconds and start + seconds <= now - age:
            return start, seconds
    if bucket.start > now:
        return now, TEN_MINUTES
    return bucket.start, bucket.seconds


def columns(buckets: Sequence[Bucket]) -> dict[str, Column]:
    """Return the buckets as columns of equal length; None without a look."""
    found: dict[str, Column] = {
        name: [getattr(bucket, name) for bucket in buckets]
        for name in ("seconds", "joined", "left", "offered", "checked", "verified", "refused")
    }
    found["time"] = [bucket.start for bucket in buckets]
    found["nodes"] = [b.nodes / b.looks if b.looks else None for b in buckets]
    return found


def rewards(buckets: Sequence[Bucket]) -> dict[str, list[float | None]]:
    """Return mean verified rewards by task family, one per bucket; None without any."""
    return {
        family: [b.rewards[family].value if family in b.rewards else None for b in buckets]
        for family in sorted({family for bucket in buckets for family in bucket.rewards})
    }


@dataclass(frozen=True, slots=True)
class RewardEstimate:
    """Mean verified reward of a level, with a 95 % interval from two authors on."""

    env: str
    level: int
    groups: int
    reward: float
    low: float | None
    high: float | None


@dataclass(slots=True)
class Lately:
    """Reward sums by the hour of verification, counted since 1970."""

    hours: dict[int, Cells] = field(default_factory=dict)

    def add(self, now: float, env: str, level: int, author: str, reward: float) -> None:
        """Count a group verified at unix time ``now``."""
        cells = self.hours.setdefault(int(now // HOUR), {})
        authors = cells.setdefault(env, {}).setdefault(level, {})
        if author not in authors:
            size = sum(len(each) for levels in cells.values() for each in levels.values())
            author = OTHERS if size >= MOST_IN_AN_HOUR else author
        authors.setdefault(author, Mean()).take(Mean(1, reward))

    def forget(self, now: float) -> None:
        """Drop all hours outside the last day, including future ones."""
        hour = int(now // HOUR)
        self.hours = {at: cells for at, cells in self.hours.items() if hour - HOURS < at <= hour}

    def estimates(self) -> list[RewardEstimate]:
        """Return the estimate of each family and level, in order."""
        whole: dict[tuple[str, int], dict[str, Mean]] = {}
        for cells in self.hours.values():
            for env, levels in cells.items():
                for level, authors in levels.items():
                    into = whole.setdefault((env, level), {})
                    for author, mean in authors.items():
                        into.setdefault(author, Mean()).take(mean)
        return [_estimate(*place, whole[place].values()) for place in sorted(whole)]


def _estimate(env: str, level: int, authors: Collection[Mean]) -> RewardEstimate:
    """Estimate with authors as clusters, because groups of one author are alike.

    Cluster-robust variance of a mean (Liang and Zeger 1986), corrected for few clusters.
    """
    groups = sum(mean.groups for mean in authors)
    reward = sum(mean.total for mean in authors) / groups
    count = len(authors)
    if count < 2:
        return RewardEstimate(env, level, groups, reward, None, None)
    squares = sum((mean.total - mean.groups * reward) ** 2 for mean in authors)
    half = math.sqrt(squares * count / (count - 1)) / groups * t95(count - 1)
    low, high = max(0.0, reward - half), min(1.0, reward + half)
    return RewardEstimate(env, level, groups, reward, low, high)
