"""Statistics of each author, in a bounded register, and counts of rejections."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.announcement import Offer
from protocol.profile import Profile
from swarm.member import PeerInfo


@dataclass(slots=True)
class Mean:
    """Sum of the mean verified rewards (``total``) of ``groups`` groups."""

    groups: int = 0
    total: float = 0.0

    def take(self, other: Mean) -> None:
        self.groups += other.groups
        self.total += other.total

    @property
    def value(self) -> float | None:
        return self.total / self.groups if self.groups else None


MAX_AUTHORS = 2_000
DAYS = 30
DAY = 86_400


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
    rewards: Mean = field(default_factory=Mean)


@dataclass(slots=True)
class Author:
    """One author."""

    first: float  # first and last time present, unix seconds
    last: float
    present: bool = True
    policy_step: int = 0
    link: str | None = None  # type of its connection with the observer
    told: ClaimedProfile = ClaimedProfile()
    offered: int = 0  # groups, as announced
    verified: int = 0  # groups whose rewards the observer confirmed
    offers: list[str] = field(default_factory=list)  # latest content ids, in hex
    refused: dict[str, int] = field(default_factory=dict)  # rejections by reason
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
        self.told = ClaimedProfile.of(peer.profile)
        offers = [offer.content_id.hex() for offer in peer.offers]
        new = _groups(peer.offers, self.offers) if offers != self.offers else 0
        self.offers = offers
        if new:
            self.offered += new
            self.day(now).offered += new
        return new

    def verify(self, env: str, reward: float, now: float) -> None:
        self.verified += 1
        self.rewards.setdefault(env, Mean()).take(Mean(1, reward))
        self.day(now).rewards.take(Mean(1, reward))

    def refuse(self, reason: str, n: int) -> None:
        self.refused[reason] = self.refused.get(reason, 0) + n

    def day(self, now: float) -> Day:
        """Return the current day, or the last one if the clock was set back."""
        start = int(now // DAY) * DAY
        if not self.days or self.days[-1].start < start:
            self.days = [*self.days[1 - DAYS :], Day(start)]
        return self.days[-1]


class Register:
    """At most :data:`MAX_AUTHORS` authors by key in hex; changes ``authors`` in place.

    When it is full, authors without a verified group leave first, then absent ones, then those
    absent longest. An author without a verified group replaces neither a present author nor one
    with verified groups, because keys are free.
    """

    def __init__(self, authors: dict[str, Author]) -> None:
        self._authors = authors
        self._leaving: list[str] | None = None

    def begin(self, present: set[str]) -> None:
        """Start a look: set which authors are present."""
        for key, author in self._authors.items():
            author.present = key in present
            author.link = author.link if author.present else None
        self._leaving = None

    def met(self, key: str, now: float) -> tuple[Author | None, bool]:
        """Return a present author and whether it is new; None if there is no place."""
        if (known := self._authors.get(key)) is not None:
            return known, False
        if len(self._authors) >= MAX_AUTHORS:
            if self._leaving is None:
                able = [k for k, a in self._authors.items() if not (a.present or a.verified)]
                self._leaving = sorted(able, key=lambda k: -self._authors[k].last)
            if not self._leaving:
                return None, False
            del self._authors[self._leaving.pop()]
        return self._added(key, now), True

    def earned(self, key: str, now: float) -> tuple[Author, bool]:
        """Return an author with a verified group, and whether it is new."""
        if (known := self._authors.get(key)) is not None:
            return known, False
        if len(self._authors) >= MAX_AUTHORS:
            del self._authors[min(self._authors, key=self._rank)]
            self._leaving = None
        return self._added(key, now), True

    def known(self, key: str) -> Author | None:
        return self._authors.get(key)

    def _added(self, key: str, now: float) -> Author:
        self._authors[key] = Author(now, now)
        return self._authors[key]

    def _rank(self, key: str) -> tuple[bool, bool, float]:
        author = self._authors[key]
        return author.verified > 0, author.present, author.last


def _groups(offers: Sequence[Offer], before: Sequence[str]) -> int:
    return sum(offer.groups for offer in offers if offer.content_id.hex() not in before)


MAX_TALLIED = 4_096
NOBODY = b""  # stands for all authors beyond MAX_TALLIED


class RefusalCounts:
    """Thread-safe counts of rejections by author and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[bytes, str]] = Counter()
        self._lock = threading.Lock()

    def refused(self, author: bytes, reason: str, n: int) -> None:
        """Count rejections; a callback of :meth:`swarm.reputation.Accounts.refuse`."""
        with self._lock:
            known = (author, reason) in self._counts or len(self._counts) < MAX_TALLIED
            self._counts[author if known else NOBODY, reason] += n

    def take(self) -> Counter[tuple[bytes, str]]:
        """Return and reset the counts."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken
