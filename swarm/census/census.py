"""Statistics of a swarm, from an observer that trusts only what it has verified."""

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
    """Counts since the first look; an author that returns after a drop counts again."""

    authors: int = 0
    offered: int = 0  # groups, as announced
    verified: int = 0
    # By reason; groups, or 1 for a frame that could not be opened.
    refused: dict[str, int] = field(default_factory=dict)

    @property
    def checked(self) -> int:
        """All checked groups and frames."""
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
    present: list[str] = field(default_factory=list)  # keys in hex, as of the last look
    authors: dict[str, Author] = field(default_factory=dict)  # by key in hex
    buckets: list[Bucket] = field(default_factory=list)
    lately: Lately = field(default_factory=Lately)


class Census:
    """Counts each look at a swarm (``now``); pure bookkeeping with bounded memory."""

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
        """Count the state, and groups verified and rejected since the last look."""
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
            bootstrap=sum(self._is_bootstrap(key, peer) for key, peer in there.items()),
            estimated=estimated,
            connected=len(connected),
            direct=sum(peer.link == "direct" for peer in connected),
            relayed=sum(peer.link == "relayed" for peer in connected),
            groups_offered=sum(peer.groups for peer in there.values()),
        )

    def _is_bootstrap(self, key: str, peer: PeerInfo) -> bool:
        known = self._register.known(key)
        return not peer.groups and not peer.policy_step and not (known and known.offered)
