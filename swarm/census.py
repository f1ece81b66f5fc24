"""Statistics of a swarm, from an observer that trusts only what it has verified."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from protocol.profile import Profile
from swarm.common.clock import Clock
from swarm.common.util import t95
from swarm.groups import Candidate, Mean
from swarm.member import MemberStatus, PeerInfo

TEN_MINUTES, HOUR, DAY = 600, 3600, 86_400  # seconds
MAX_AUTHORS = 2_000
DAYS = 30  # kept per author


@dataclass(frozen=True, slots=True)
class ClaimedProfile:
    """Unverified claims of a peer about itself."""

    name: str | None = None
    line: str | None = None
    model: str | None = None
    version: str | None = None

    @classmethod
    def of(cls, profile: Profile | None) -> ClaimedProfile:
        """Copy a profile; empty fields become None."""
        if profile is None:
            return cls()
        texts = profile.name, profile.line, profile.model, profile.version
        return cls(*(text or None for text in texts))


@dataclass(slots=True)
class Day:
    """Groups of one author on a day from unix time ``start``; rewards are verified."""

    start: int
    offered: int = 0
    rewards: Mean = field(default_factory=Mean)  # verified


@dataclass(slots=True)
class Author:
    """One author."""

    first: float  # first and last time present, unix seconds
    last: float
    present: bool = True
    policy_step: int = 0
    link: str | None = None  # type of its connection with the observer
    profile: ClaimedProfile = ClaimedProfile()
    offered: int = 0  # groups, as announced
    verified: int = 0  # groups whose rewards the observer confirmed
    offers: list[str] = field(default_factory=list)  # latest content ids, in hex
    refused: Counter[str] = field(default_factory=Counter)  # rejections by reason
    rewards: dict[str, Mean] = field(default_factory=dict)  # verified, by family
    days: list[Day] = field(default_factory=list)  # the latest, ascending

    @property
    def checked(self) -> int:
        """Checked groups, plus frames that could not be opened."""
        return self.verified + sum(self.refused.values())

    def meet(self, peer: PeerInfo, now: float) -> int:
        """Note a peer's current state; return the number of newly offered groups."""
        self.last, self.present = now, True
        self.policy_step, self.link = peer.policy_step or 0, peer.link
        self.profile = ClaimedProfile.of(peer.profile)
        offers = [offer.content_id.hex() for offer in peer.offers]
        new = sum(o.groups for o in peer.offers if o.content_id.hex() not in self.offers)
        self.offers = offers
        if new:
            self.offered += new
            self.day(now).offered += new
        return new

    def verify(self, env: str, reward: float, now: float) -> None:
        self.verified += 1
        self.rewards.setdefault(env, Mean()).add(Mean(1, reward))
        self.day(now).rewards.add(Mean(1, reward))

    def day(self, now: float) -> Day:
        """Return the current day, new if needed; the last one if the clock was set back."""
        start = int(now // DAY) * DAY
        if not self.days or self.days[-1].start < start:
            self.days = [*self.days[1 - DAYS :], Day(start)]
        return self.days[-1]


class Register:
    """At most :data:`MAX_AUTHORS` authors by key in hex; changes ``authors`` in place.

    When full, unverified authors leave first, then the longest absent. An unverified author
    replaces neither a present nor a verified one, because keys are free.
    """

    def __init__(self, authors: dict[str, Author]) -> None:
        self._authors = authors
        # Authors that a present one may replace, the longest absent last; None if not known yet.
        self._replaceable: list[str] | None = None

    def begin(self, present: set[str]) -> None:
        """Start a look: set which authors are present."""
        for key, author in self._authors.items():
            author.present = key in present
            author.link = author.link if author.present else None
        self._replaceable = None

    def of_present(self, key: str, now: float) -> tuple[Author | None, bool]:
        """Return a present author and whether it is new; None if there is no place."""
        if (author := self._authors.get(key)) is not None:
            return author, False
        if len(self._authors) >= MAX_AUTHORS:
            if self._replaceable is None:
                candidates = [k for k, a in self._authors.items() if not (a.present or a.verified)]
                self._replaceable = sorted(candidates, key=lambda k: -self._authors[k].last)
            if not self._replaceable:
                return None, False
            del self._authors[self._replaceable.pop()]
        return self._added(key, now), True

    def of_verified(self, key: str, now: float) -> tuple[Author, bool]:
        """Return an author with a verified group, and whether it is new."""
        if (author := self._authors.get(key)) is not None:
            return author, False
        if len(self._authors) >= MAX_AUTHORS:
            del self._authors[min(self._authors, key=self._rank)]
            self._replaceable = None
        return self._added(key, now), True

    def _added(self, key: str, now: float) -> Author:
        self._authors[key] = Author(now, now)
        return self._authors[key]

    def _rank(self, key: str) -> tuple[bool, bool, float]:
        author = self._authors[key]
        return author.verified > 0, author.present, author.last


# A bucket covers ten minutes for two days, then an hour until it is 60 days old, then a day.
FINE_SECONDS = 2 * DAY
HOURLY_SECONDS = 60 * DAY
MAX_BUCKETS = 5_500  # about ten years
COUNTED = ("joined", "left", "offered", "checked", "verified", "refused")  # fields of a bucket

Column = list[float | None]


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

    def add(self, other: Bucket) -> None:
        for name in ("looks", "nodes", *COUNTED):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for family, mean in other.rewards.items():
            self.rewards.setdefault(family, Mean()).add(mean)


def bucket_at(now: float) -> Bucket:
    """Return an empty ten-minute bucket that contains unix time ``now``."""
    return Bucket(int(now // TEN_MINUTES) * TEN_MINUTES)


def record(buckets: list[Bucket], news: Bucket) -> None:
    """Add the counts of the current ten minutes in place; buckets stay ascending, disjoint.

    If the clock was set back, counts of future times move to the current time.
    """
    if buckets and buckets[-1].start <= news.start < buckets[-1].end:
        buckets[-1].add(news)
        return
    buckets[:] = _coarsened([*buckets, news], news.start)[-MAX_BUCKETS:]


def _coarsened(buckets: Iterable[Bucket], now: int) -> list[Bucket]:
    """Merge buckets into the longer spans that their age at ``now`` requires."""
    merged: list[Bucket] = []
    for bucket in buckets:
        start, seconds = _span(bucket, now)
        if merged and merged[-1].end > start:
            merged[-1].add(bucket)
        else:
            merged.append(replace(bucket, start=start, seconds=seconds))
    return merged


def _span(bucket: Bucket, now: int) -> tuple[int, int]:
    """Return start and length of the span for a bucket, once all of the span is old enough."""
    for seconds, age in ((DAY, HOURLY_SECONDS), (HOUR, FINE_SECONDS)):
        start = bucket.start // seconds * seconds
        if bucket.seconds <= seconds and start + seconds <= now - age:
            return start, seconds
    if bucket.start > now:
        return now, TEN_MINUTES
    return bucket.start, bucket.seconds


def columns(buckets: Sequence[Bucket]) -> dict[str, Column]:
    """Return the buckets as columns of equal length; None without a look."""
    table: dict[str, Column] = {
        name: [getattr(bucket, name) for bucket in buckets] for name in ("seconds", *COUNTED)
    }
    table["time"] = [bucket.start for bucket in buckets]
    table["nodes"] = [b.nodes / b.looks if b.looks else None for b in buckets]
    return table


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
    groups: float
    reward: float
    low: float | None
    high: float | None


HOURS = 24
# Entries by family, level and author in an hour; more are counted as of one author, OTHERS, which
# widens the interval.
MAX_PER_HOUR = 1_000
OTHERS = ""
RewardSums = dict[str, dict[int, dict[str, Mean]]]  # by family, level and author


@dataclass(slots=True)
class RecentRewards:
    """Rewards of the last day, by the hour of verification (hours since 1970)."""

    hours: dict[int, RewardSums] = field(default_factory=dict)

    def add(self, now: float, env: str, level: int, author: str, reward: float) -> None:
        """Count a group verified at unix time ``now``."""
        sums = self.hours.setdefault(int(now // HOUR), {})
        authors = sums.setdefault(env, {}).setdefault(level, {})
        if author not in authors:
            size = sum(len(means) for levels in sums.values() for means in levels.values())
            author = OTHERS if size >= MAX_PER_HOUR else author
        authors.setdefault(author, Mean()).add(Mean(1, reward))

    def forget(self, now: float) -> None:
        """Drop all hours outside the last day, including future ones."""
        hour = int(now // HOUR)
        self.hours = {key: sums for key, sums in self.hours.items() if hour - HOURS < key <= hour}

    def estimates(self) -> list[RewardEstimate]:
        """Return the estimate of each family and level, in order."""
        by_level: dict[tuple[str, int], dict[str, Mean]] = {}
        for sums in self.hours.values():
            for env, levels in sums.items():
                for level, authors in levels.items():
                    means = by_level.setdefault((env, level), {})
                    for author, mean in authors.items():
                        means.setdefault(author, Mean()).add(mean)
        return [_estimate(*level, by_level[level].values()) for level in sorted(by_level)]


def _estimate(env: str, level: int, authors: Collection[Mean]) -> RewardEstimate:
    """Estimate with authors as clusters (robust variance; Liang and Zeger 1986)."""
    groups = sum(mean.groups for mean in authors)
    reward = sum(mean.total for mean in authors) / groups
    count = len(authors)
    if count < 2:
        return RewardEstimate(env, level, groups, reward, None, None)
    squares = sum((mean.total - mean.groups * reward) ** 2 for mean in authors)
    margin = math.sqrt(squares * count / (count - 1)) / groups * t95(count - 1)
    low, high = max(0.0, reward - margin), min(1.0, reward + margin)
    return RewardEstimate(env, level, groups, reward, low, high)


@dataclass(slots=True)
class Totals:
    """Counts since the first look; an author that returns after a drop counts again."""

    authors: int = 0
    offered: int = 0  # groups, as announced
    verified: int = 0
    # By reason; groups, or 1 for a frame that could not be opened.
    refused: Counter[str] = field(default_factory=Counter)

    @property
    def checked(self) -> int:
        return self.verified + sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class Present:
    """The swarm at the last look, without the observer."""

    nodes: int = 0  # authors with an unexpired announcement of this time slot or the two before
    bootstrap: int = 0  # of these, the ones that never shared a group
    estimated: int | None = None  # authors of the whole swarm, if only a part of it is visible
    connected: int = 0  # with the observer
    direct: int = 0
    relayed: int = 0
    groups_offered: int = 0


@dataclass(slots=True)
class CensusState:
    """The persistent state, made of plain values, since unix time ``since``."""

    swarm: str  # its id in hex
    since: float
    total: Totals = field(default_factory=Totals)
    # Keys in hex, as of the last look, and of the authors that a restarted observer awaits.
    present: list[str] = field(default_factory=list)
    authors: dict[str, Author] = field(default_factory=dict)  # by key in hex
    buckets: list[Bucket] = field(default_factory=list)
    lately: RecentRewards = field(default_factory=RecentRewards)


class Census:
    """Counts each look at a swarm (``now``); pure bookkeeping with bounded memory.

    After a restart the observer knows no announcement. Authors that were present before have
    ``patience`` seconds to announce themselves until they count as left.
    """

    def __init__(self, state: CensusState, clock: Clock, patience: float = 0.0) -> None:
        self.state = state
        self.now = Present()
        self._clock = clock
        self._awaited = set(state.present)
        self._awaited_until = clock.monotonic() + patience
        self._register = Register(state.authors)

    def look(
        self,
        status: MemberStatus,
        arrived: Iterable[Candidate] = (),
        refused: Mapping[tuple[bytes, str], int] | None = None,
    ) -> None:
        """Count the state, and groups verified and rejected since the last look."""
        now = self._clock.time()
        peers = {p.author.hex(): p for p in status.peers if p.author and p.policy_step is not None}
        bucket, previous = bucket_at(now), set(self.state.present)
        bucket.looks, bucket.nodes = 1, len(peers)
        expired = self._clock.monotonic() >= self._awaited_until
        self._awaited = set() if expired else self._awaited - peers.keys()
        present = self._awaited | peers.keys()
        bucket.joined, bucket.left = len(peers.keys() - previous), len(previous - present)
        self.state.present = sorted(present)
        self._register.begin(set(peers))
        bucket.offered = sum(self._meet(key, peer, now) for key, peer in peers.items())
        self._verify(arrived, bucket, now)
        self._refuse(refused or {}, bucket)
        bucket.checked = bucket.verified + bucket.refused
        record(self.state.buckets, bucket)
        self.state.lately.forget(now)
        self.now = self._present(peers, status.estimated)

    @property
    def present(self) -> list[str]:
        """Keys in hex of the authors of the last look."""
        return [key for key in self.state.present if key not in self._awaited]

    def _meet(self, key: str, peer: PeerInfo, now: float) -> int:
        author, new = self._register.of_present(key, now)
        self.state.total.authors += new
        groups = author.meet(peer, now) if author else 0
        self.state.total.offered += groups
        return groups

    def _verify(self, groups: Iterable[Candidate], bucket: Bucket, now: float) -> None:
        for group in groups:
            key, reward = group.key.author.hex(), fmean(group.rewards)
            author, new = self._register.of_verified(key, now)
            author.verify(group.env, reward, now)
            self.state.total.authors += new
            self.state.total.verified += 1
            self.state.lately.add(now, group.env, group.level, key, reward)
            bucket.verified += 1
            bucket.rewards.setdefault(group.env, Mean()).add(Mean(1, reward))

    def _refuse(self, refusals: Mapping[tuple[bytes, str], int], bucket: Bucket) -> None:
        for (key, reason), n in refusals.items():
            if (author := self.state.authors.get(key.hex())) is not None:
                author.refused[reason] += n
            self.state.total.refused[reason] += n
            bucket.refused += n

    def _present(self, peers: Mapping[str, PeerInfo], estimated: int | None) -> Present:
        connected = [peer for peer in peers.values() if peer.connected]
        return Present(
            nodes=len(peers),
            bootstrap=sum(self._is_bootstrap(key, peer) for key, peer in peers.items()),
            estimated=estimated,
            connected=len(connected),
            direct=sum(peer.link == "direct" for peer in connected),
            relayed=sum(peer.link == "relayed" for peer in connected),
            groups_offered=sum(peer.groups for peer in peers.values()),
        )

    def _is_bootstrap(self, key: str, peer: PeerInfo) -> bool:
        author = self.state.authors.get(key)
        return not peer.groups and not peer.policy_step and not (author and author.offered)
