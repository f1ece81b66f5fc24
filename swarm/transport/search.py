"""A DHT search and a store that tolerate false and missing answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from swarm.common.counters import Counters

BUCKET = 20  # neighbors in an honest answer, and nodes that a search returns
REPLICAS = 5
WORKERS = 4
PATIENCE_SECONDS = 0.5  # before another peer is asked in parallel, so silent peers delay nothing
MOST_ASKED = 64  # nodes asked in one search, however many are named
SEARCH_SECONDS = 5.0  # until the search asks no more nodes and returns what it has
PLACING_SECONDS = 5.0  # until a store waits for no more answers
MISNAMED = 4  # false or silent neighbors of one peer, after which its other ones are asked last

N = TypeVar("N", bound=Hashable)
P = TypeVar("P", bound=Hashable)
Answer = tuple[N | None, Iterable[tuple[N, P]]]


@dataclass(slots=True)
class _Request(Generic[N, P]):
    pair: tuple[N, P]
    patience_ends: float  # monotonic seconds, after which the request is slow
    slow: bool = False


@dataclass(eq=False)
class Search(Generic[N, P]):
    """Kademlia's search for the nodes nearest to a key.

    Source: Maymounkov and Mazieres, 2002. Each peer is asked once, under whatever ids it is named,
    and counts under its own id. An answer adds at most one bucket of neighbors, each peer once and
    never this node. A peer that names false neighbors is trusted less; neighbors that others also
    name are not affected.
    """

    _own: tuple[N, P]  # id and peer of this node
    _distance: Callable[[N], int]  # of a node id from the key
    # Returns a peer's own id (None if it is not a DHT node) and its neighbors nearest to the key;
    # None without a valid answer. It keeps other content, such as records, itself.
    _ask: Callable[[P], Awaitable[Answer[N, P] | None]]
    _counters: Counters

    def __post_init__(self) -> None:
        self._waiting: set[tuple[N, P]] = set()
        self._namers: dict[tuple[N, P], set[P]] = {}
        self._misnamed: Counter[P] = Counter()
        self._asked: set[P] = set()
        self._under_way: dict[asyncio.Task[Answer[N, P] | None], _Request[N, P]] = {}
        self._answered: dict[P, N] = {}

    async def nearest(self, start: Iterable[tuple[N, P]]) -> list[tuple[N, P]]:
        """Return the nearest nodes that answered, nearest first; search from ``start``."""
        self._waiting.update(start)
        end = time.monotonic() + SEARCH_SECONDS
        try:
            self._begin()
            while self._under_way:
                # Until an answer arrives or the next request becomes slow.
                deadlines = [request.patience_ends for request in self._awaited()]
                max_wait = max(0.0, min(deadlines) - time.monotonic()) if deadlines else None
                done, _ = await asyncio.wait(
                    self._under_way, timeout=max_wait, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    self._take(self._under_way.pop(task), task.result())
                self._lose_patience()
                if time.monotonic() < end:
                    self._begin()
        finally:
            for task in self._under_way:
                task.cancel()
        pairs = [(node, peer) for peer, node in self._answered.items()]
        return sorted(pairs, key=lambda pair: self._distance(pair[0]))[:BUCKET]

    def _begin(self) -> None:
        for pair in sorted(self._waiting, key=self._rank):
            if len(self._awaited()) >= WORKERS or len(self._asked) >= MOST_ASKED:
                return
            if self._nearer_than(pair) >= BUCKET:
                return
            self._waiting.remove(pair)
            _, peer = pair
            if peer not in self._asked:
                self._asked.add(peer)
                task = asyncio.ensure_future(self._ask(peer))
                self._under_way[task] = _Request(pair, time.monotonic() + PATIENCE_SECONDS)

    def _awaited(self) -> list[_Request[N, P]]:
        return [request for request in self._under_way.values() if not request.slow]

    def _lose_patience(self) -> None:
        now = time.monotonic()
        for request in self._awaited():
            if request.patience_ends <= now:
                request.slow = True
                self._misnamed.update(self._namers.get(request.pair, ()))

    def _rank(self, pair: tuple[N, P]) -> tuple[bool, int]:
        namers = self._namers.get(pair)
        doubted = bool(namers) and all(self._misnamed[namer] >= MISNAMED for namer in namers or ())
        return doubted, self._distance(pair[0])

    def _nearer_than(self, pair: tuple[N, P]) -> int:
        rank = self._rank(pair)
        nodes = (*self._answered.values(), *(request.pair[0] for request in self._awaited()))
        return sum((False, self._distance(node)) < rank for node in nodes)

    def _take(self, request: _Request[N, P], answer: Answer[N, P] | None) -> None:
        node, peer = request.pair
        namers = self._namers.get(request.pair, ())
        if answer is None:
            self._counters.add("searches_unanswered")
        if request.slow:
            self._misnamed.subtract(namers)
        if answer is None or answer[0] != node:
            self._misnamed.update(namers)
        if answer is None:
            return
        own_id, neighbors = answer
        if own_id is not None:
            self._answered[peer] = own_id
        for pair in self._kept(list(neighbors)):
            if pair[1] not in self._asked:
                if pair in self._waiting and pair not in self._namers:
                    continue  # this node already knows it
                self._waiting.add(pair)
                self._namers.setdefault(pair, set()).add(peer)

    def _kept(self, neighbors: list[tuple[N, P]]) -> list[tuple[N, P]]:
        own_node, own_peer = self._own
        ids: dict[P, N] = {}
        for node, peer in neighbors:
            if node != own_node and peer != own_peer:
                ids.setdefault(peer, node)
        pairs = [(node, peer) for peer, node in ids.items()][:BUCKET]
        if excess := len(neighbors) - len(pairs):
            self._counters.add("neighbours_refused", excess)
        return pairs


async def placed(
    near: Iterable[tuple[N, P]], put: Callable[[P], Awaitable[Iterable[bool] | None]]
) -> bool:
    """Put a record on :data:`REPLICAS` peers that answer; return whether any took it.

    ``near`` lists candidates, nearest first. ``put`` returns None if a peer does not answer.
    """
    candidates = iter(near)
    answers: list[bool] = []
    pending: set[asyncio.Task[Iterable[bool] | None]] = set()
    deadline = time.monotonic() + PLACING_SECONDS
    try:
        while True:
            free = REPLICAS - len(answers) - len(pending)
            pending |= {asyncio.ensure_future(put(peer)) for _, peer in islice(candidates, free)}
            if not pending:
                break
            max_wait = max(0.0, deadline - time.monotonic())
            done, pending = await asyncio.wait(
                pending, timeout=max_wait, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            answers += [any(result) for task in done if (result := task.result()) is not None]
    finally:
        for task in pending:
            task.cancel()
    return any(answers)
