"""A swarm as a whole, counted by one observer who believes nothing that it has not verified."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean

from swarm.census.authors import Author, Mean, Register
from swarm.census.buckets import Bucket, Lately, bucket_at, record
from swarm.common.clock import Clock
from swarm.groups import Candidate
from swarm.member import MemberStatus, PeerInfo


@dataclass(slots=True)
class Totals:
    """Since the first look.

    Attributes:
        authors: that were met; one that was forgotten meanwhile counts again.
        offered: groups, as their authors announced.
        verified: groups.
        refused: by reason; groups, or 1 for a frame that could not be opened.
    """

    authors: int = 0
    offered: int = 0
    verified: int = 0
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def checked(self) -> int:
        """What was looked at, whatever came of it."""
        return self.verified + sum(self.refused.values())


@dataclass(frozen=True, slots=True)
class Present:
    """The swarm at the last look, the observer left out.

    Attributes:
        nodes: authors whose announcement of this epoch or the two before has not expired.
        seeds: of these, those who never shared a group.
        estimated: authors of the whole swarm, where only a part of it is seen.
        connected, direct, relayed: nodes that the observer has a connection with.
        groups_offered: now.
    """

    nodes: int = 0
    seeds: int = 0
    estimated: int | None = None
    connected: int = 0
    direct: int = 0
    relayed: int = 0
    groups_offered: int = 0


@dataclass(slots=True)
class CensusState:
    """All that is kept, made of plain values.

    Attributes:
        swarm: its id in hex.
        since: unix time of the first look, seconds.
        authors: by key in hex.
        present: keys of those who were there at the last look.
    """

    swarm: str
    since: float
    total: Totals = field(default_factory=Totals)
    present: list[str] = field(default_factory=list)
    authors: dict[str, Author] = field(default_factory=dict)
    buckets: list[Bucket] = field(default_factory=list)
    lately: Lately = field(default_factory=Lately)


class Census:
    """Counts what it is shown at each look; pure bookkeeping, bounded whatever strangers do.

    Args:
        state: what was counted before, which goes on.
        clock: tells the time of a look.

    Attributes:
        now: the swarm as it was last seen.
    """

    def __init__(self, state: CensusState, clock: Clock) -> None:
        self.state = state
        self.now = Present()
        self._clock = clock
        self._register = Register(state.authors)

    def look(
        self,
        status: MemberStatus,
        arrived: Iterable[Candidate] = (),
        refused: Mapping[tuple[bytes, str], int] | None = None,
    ) -> None:
        """Count once more.

        Args:
            status: of the observer.
            arrived: groups that were verified since the last look.
            refused: what was refused since, by author and reason.
        """
        now = self._clock.time()
        there = {p.author.hex(): p for p in status.peers if p.author and p.policy_step is not None}
        news, before = bucket_at(now), set(self.state.present)
        news.looks, news.nodes = 1, len(there)
        news.joined, news.left = len(there.keys() - before), len(before - there.keys())
        self.state.present = sorted(there)
        self._register.begin(set(there))
        news.offered = sum(self._meet(key, peer, now) for key, peer in there.items())
        self._verify(arrived, news, now)
        self._refuse(refused or {}, news)
        news.checked = news.verified + news.refused
        record(self.state.buckets, news)
        self.state.lately.forget(now)
        self.now = self._present(there, status.estimated)

    def _meet(self, key: str, peer: PeerInfo, now: float) -> int:
        author, new = self._register.met(key, now)
        self.state.total.authors += new
        groups = author.meet(peer, now) if author else 0
        self.state.total.offered += groups
        return groups

    def _verify(self, arrived: Iterable[Candidate], news: Bucket, now: float) -> None:
        for group in arrived:
            key, reward = group.key.author.hex(), fmean(group.rewards)
            author, new = self._register.earned(key, now)
            author.verify(group.env, reward, now)
            self.state.total.authors += new
            self.state.total.verified += 1
            self.state.lately.add(now, group.env, group.level, key, reward)
            news.verified += 1
            news.rewards.setdefault(group.env, Mean()).take(Mean(1, reward))

    def _refuse(self, refused: Mapping[tuple[bytes, str], int], news: Bucket) -> None:
        for (key, reason), n in refused.items():
            if (author := self._register.known(key.hex())) is not None:
                author.refuse(reason, n)
            total = self.state.total.refused
            total[reason] = total.get(reason, 0) + n
            news.refused += n

    def _present(self, there: Mapping[str, PeerInfo], estimated: int | None) -> Present:
        connected = [peer for peer in there.values() if peer.connected]
        return Present(
            nodes=len(there),
            seeds=sum(self._is_seed(key, peer) for key, peer in there.items()),
            estimated=estimated,
            connected=len(connected),
            direct=sum(peer.link == "direct" for peer in connected),
            relayed=sum(peer.link == "relayed" for peer in connected),
            groups_offered=sum(peer.groups for peer in there.values()),
        )

    def _is_seed(self, key: str, peer: PeerInfo) -> bool:
        known = self._register.known(key)
        return not peer.groups and not peer.policy_step and not (known and known.offered)
