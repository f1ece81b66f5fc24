"""What was seen over time: fine of late, coarse of long ago, in a bounded number of buckets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from swarm.census.mean import Mean, take_all

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
