"""Limits that unknown peers cannot exhaust: reputation cache, bounded map, byte budget, backoff."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Generic, TypeVar

from protocol.errors import BadKey
from protocol.identity import author_of
from swarm.common.clock import Clock

ReputationOf = Callable[[bytes], float]  # author's public key -> reputation in [0, 1]

KNOWN = 0.25  # reputation from which a peer counts as known to be useful
KEPT = 0.25  # part of every bounded resource that unknown peers cannot take from known ones
REMEMBERED_SECONDS = 5.0
MAX_REMEMBERED = 4096


@dataclass(frozen=True, slots=True)
class OwnFirst:
    """Reputations of authors, with this node's own at 1, so it keeps its records too."""

    own: bytes
    reputation: ReputationOf
    reputations: Callable[[], Mapping[bytes, float]]  # of every author that has any

    def __call__(self, author: bytes) -> float:
        return 1.0 if author == self.own else self.reputation(author)

    def all(self) -> dict[bytes, float]:
        """Return the reputation of every author that has any."""
        return {**self.reputations(), self.own: 1.0}


def author_or_none(peer: str) -> bytes | None:
    """Return the public key in a peer id; None if it is not an Ed25519 key."""
    try:
        return author_of(peer)
    except BadKey:
        return None


def holder_of(host: str) -> str:
    """Return one name for the machine that holds an IP address, empty if no single one does.

    A machine can use all public IPv6 addresses of its /64 network.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    if isinstance(address, IPv6Address):
        address = address.ipv4_mapped or address
    if address.is_unspecified or address.is_multicast:
        return ""
    if address.is_loopback:
        return "this machine"
    if isinstance(address, IPv6Address) and address.is_global:
        return str(ip_network((address, 64), strict=False))
    return str(address)


class Reputations:
    """A cache of reputations, which are all 0 before :meth:`use` sets the source."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ask: ReputationOf = lambda author: 0.0
        self._remembered: dict[bytes, tuple[float, float]] = {}

    def use(self, reputation: ReputationOf) -> None:
        self._ask = reputation
        self._remembered.clear()

    def of(self, author: bytes) -> float:
        """Return an author's reputation, in [0, 1]."""
        now = self._clock.monotonic()
        value, expiry = self._remembered.get(author, (0.0, now))
        if expiry > now:
            return value
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        value = self._ask(author)
        self._remembered[author] = value, now + REMEMBERED_SECONDS
        return value

    def of_peer(self, peer: str) -> float:
        """Return a peer's reputation by its id; 0 if the id is not an author's."""
        author = author_or_none(peer)
        return 0.0 if author is None else self.of(author)

    def knows(self, peer: str) -> bool:
        """Return whether a peer is known to be useful."""
        return self.of_peer(peer) >= KNOWN


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

WEIGHT = 16.0  # how much a small reputation, below ``KNOWN``, improves the drawn rank


def lot(secret: bytes, *parts: bytes) -> float:
    """Return a number in [0, 1) from a keyed hash, unpredictable without ``secret``."""
    digest = blake2b(key=secret[:64], digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return int.from_bytes(digest.digest(), "big") / 2**64


def rank_of(drawn: float, reputation: float) -> float:
    """Return the rank for ``drawn`` in [0, 1); negative for known, lower if better."""
    return -reputation if reputation >= KNOWN else drawn / (1.0 + WEIGHT * reputation)


class Bounded(Generic[K, V]):
    """A map that keeps the ``limit`` keys of the lowest ranks among all that were put.

    A flood of new keys cannot take it over, because peers can neither choose nor predict ranks. All
    unknown keys have the same chance, independent of order and frequency. Known ones come before
    them (bottom-k sampling, Cohen and Kaplan, PODC 2007). ``rank`` is computed at every put;
    between equal ranks the earlier key stays.
    """

    def __init__(self, limit: int, rank: Callable[[K], float]) -> None:
        self._limit = limit
        self._rank = rank
        self._values: dict[K, V] = {}
        self._ranks: dict[K, float] = {}
        # A heap of (-rank, number, key). Entries of removed keys and of earlier ranks stay in it
        # until they come to its top or outnumber the valid ones.
        self._worst: list[tuple[float, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def get(self, key: K) -> V | None:
        return self._values.get(key)

    def rank(self, key: K) -> float:
        """Return a key's rank as of its last put."""
        return self._ranks[key]

    def values(self) -> list[V]:
        return list(self._values.values())

    def put(self, key: K, value: V) -> K | None:
        """Insert or update a key; return the key evicted for it, which may be ``key``."""
        rank = self._rank(key)
        worst = None
        if self._ranks.get(key) != rank:
            if key not in self._values and len(self._values) >= self._limit:
                worst = self._top()
                if rank >= self._ranks[worst]:
                    return key
                self.pop(worst)
            self._note(key, rank)
        self._values[key] = value
        return worst

    def pop(self, key: K) -> V | None:
        self._ranks.pop(key, None)
        return self._values.pop(key, None)

    def worst(self) -> K | None:
        """Return the key to be evicted next; None if the map is empty."""
        return self._top() if self._values else None

    def _note(self, key: K, rank: float) -> None:
        self._ranks[key] = rank
        self._number += 1
        heapq.heappush(self._worst, (-rank, self._number, key))
        if len(self._worst) > 2 * len(self._ranks) + 16:
            valid = [entry for entry in self._worst if self._ranks.get(entry[2]) == -entry[0]]
            self._worst = list({entry[2]: entry for entry in sorted(valid, reverse=True)}.values())
            heapq.heapify(self._worst)

    def _top(self) -> K:
        while self._ranks.get(self._worst[0][2]) != -self._worst[0][0]:
            heapq.heappop(self._worst)
        return self._worst[0][2]


BURST_SECONDS = 4.0
PEER_SHARE = 0.25
GREED = 0.5  # a peer may use this fraction of the unused rest
LEAST_COST = 1024  # minimum bytes charged per message, so that small ones are limited too

MAX_PEERS = 4096


@dataclass(slots=True)
class _Use:
    bytes: float
    at: float

    def fade(self, now: float) -> float:
        self.bytes *= math.exp((self.at - now) / BURST_SECONDS)
        self.at = now
        return self.bytes


class ByteBudget:
    """Byte budget that decides whether to handle a message from or to a peer now.

    Recent charges, per peer and in total, must not exceed the burst. A peer may continue only while
    it has used at most half of what is free. So n greedy peers end with equal shares, free bytes
    relate to theirs as 2 : n, and a new peer always finds space (dynamic thresholds, Choudhury and
    Hahne, 1998). All unknown peers together leave a quarter to known peers. ``rate`` is in bytes
    per second; one peer gets up to a quarter. ``largest`` bytes always pass after waiting enough.
    """

    def __init__(self, rate: float, largest: int, clock: Clock, reputations: Reputations) -> None:
        # The largest message fits again once a burst's time has passed since the last one.
        minimum = largest / (PEER_SHARE * -math.expm1(-1.0))
        self._burst = max(BURST_SECONDS * rate, minimum)
        self._clock = clock
        self._reputations = reputations
        self._all = _Use(0.0, clock.monotonic())
        self._unknown = _Use(0.0, clock.monotonic())
        self._peers: OrderedDict[str, _Use] = OrderedDict()

    def has_room(self, peer: str, size: int = LEAST_COST) -> bool:
        """Return whether a message of ``size`` bytes would be handled."""
        return self._allows(peer, size, self._clock.monotonic())

    def take(self, peer: str, size: int) -> bool:
        """Charge a message of ``size`` bytes to ``peer`` if that leaves enough to others."""
        now = self._clock.monotonic()
        cost = max(size, LEAST_COST)
        if not self._allows(peer, cost, now):
            return False
        self._charge(peer, cost, now)
        return True

    def owe(self, peer: str, size: int) -> None:
        """Charge bytes unconditionally, if their number was unknown before sending."""
        self._charge(peer, size, self._clock.monotonic())

    def _allows(self, peer: str, cost: int, now: float) -> bool:
        available = self._burst - self._all.fade(now)
        if not self._reputations.knows(peer):
            available = min(available, self._burst * (1.0 - KEPT) - self._unknown.fade(now))
        used = self._peers[peer].fade(now) if peer in self._peers else 0.0
        if used + cost > self._burst * PEER_SHARE:
            return False
        is_first = used < LEAST_COST and cost <= available
        return is_first or used + cost <= GREED * available

    def _charge(self, peer: str, cost: int, now: float) -> None:
        usage = self._peers.pop(peer, None) or _Use(0.0, now)
        unknown = not self._reputations.knows(peer)
        for entry in (usage, self._all, self._unknown) if unknown else (usage, self._all):
            entry.fade(now)
            entry.bytes += cost
        self._peers[peer] = usage
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)


class Backoff(Generic[K]):
    """Pauses that double with every consecutive failure and end at the first success.

    They last ``first`` to ``longest`` seconds; a failure ``longest`` ago is forgotten. ``free``
    consecutive failures cause no pause, because any peer may fail briefly.
    """

    def __init__(self, clock: Clock, *, first: float, longest: float, free: int = 0) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._free = free
        self._failures: dict[K, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, key: K) -> float:
        """Note a failure and return the seconds of the pause that begins now."""
        count, pause_end = self._failures.get(key, (0, 0.0))
        count = count + 1 if pause_end + self._longest > self._clock.monotonic() else 1
        pause = 0.0
        if count > self._free:
            pause = min(self._longest, self._first * 2.0 ** min(count - self._free - 1, 60))
        # The oldest entry is evicted first: a peer that floods with new keys also loses its own.
        self._failures.pop(key, None)
        if len(self._failures) >= MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = count, self._clock.monotonic() + pause
        return pause

    def succeeded(self, key: K) -> None:
        self._failures.pop(key, None)

    def waits(self, key: K) -> bool:
        return key in self._failures and self._failures[key][1] > self._clock.monotonic()
