"""A search of the hash table among nodes that may answer anything, or nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Iterable
from typing import Generic, TypeVar

from swarm.common.counters import Counters

BUCKET = 20
"""Neighbours that an honest node names, and nodes that a search is content with."""

REPLICAS = 5
WORKERS = 4
MOST_ASKED = 64
"""Nodes asked in one search, however many are named."""

SEARCH_SECONDS = 5.0
"""After which nobody is asked any more: what was found until then is what there is."""

UNANSWERED = 4
"""Neighbours of one peer's that did not answer, after which its others are asked last."""

N = TypeVar("N", bound=Hashable)
P = TypeVar("P", bound=Hashable)


class Search(Generic[N, P]):
    """Kademlia's search for the nodes nearest to a key (Maymounkov and Mazieres, 2002).

    No peer leads it astray for long: each is asked once, whatever ids it is named under, names no
    more than a bucket, each peer once and never this node, and no node that does not answer is
    among the nearest.

    Args:
        own: id and peer of this node.
        distance: of a node's id from the key.
        ask: a peer's neighbours nearest to the key; None where it does not answer, or nonsense.
            What else an answer holds, such as records, is for whoever asks to keep.
    """

    def __init__(
        self,
        own: tuple[N, P],
        distance: Callable[[N], int],
        ask: Callable[[P], Awaitable[Iterable[tuple[N, P]] | None]],
        counters: Counters,
    ) -> None:
        self._own = own
        self._distance = distance
        self._ask = ask
        self._counters = counters
        self._waiting: dict[N, P] = {}
        self._named_by: dict[N, P] = {}
        self._silent: Counter[P] = Counter()
        self._asked: set[P] = set()
        self._under_way: dict[asyncio.Task[Iterable[tuple[N, P]] | None], tuple[N, P]] = {}
        self._answered: dict[N, P] = {}

    async def nearest(self, start: Iterable[tuple[N, P]]) -> list[tuple[N, P]]:
        """Those that answered of the nodes nearest to the key, nearest first.

        Args:
            start: nodes that this one knows itself.
        """
        self._waiting.update(start)
        end = time.monotonic() + SEARCH_SECONDS
        try:
            self._begin()
            while self._under_way:
                done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    self._take(*self._under_way.pop(task), task.result())
                if time.monotonic() < end:
                    self._begin()
        finally:
            for task in self._under_way:
                task.cancel()
        order = sorted(self._answered, key=self._distance)
        return [(node, self._answered[node]) for node in order[:BUCKET]]

    def _begin(self) -> None:
        """Ask the most promising of those that wait, while they may be among the nearest."""
        for node in sorted(self._waiting, key=self._rank):
            if len(self._under_way) >= WORKERS or len(self._asked) >= MOST_ASKED:
                return
            if self._nearer_than(node) >= BUCKET:
                return
            peer = self._waiting.pop(node)
            if peer not in self._asked:
                self._asked.add(peer)
                self._under_way[asyncio.ensure_future(self._ask(peer))] = node, peer

    def _rank(self, node: N) -> tuple[bool, int]:
        by = self._named_by.get(node)
        return by is not None and self._silent[by] >= UNANSWERED, self._distance(node)

    def _nearer_than(self, node: N) -> int:
        rank = self._rank(node)
        asked = (*self._answered, *(each for each, _ in self._under_way.values()))
        return sum((False, self._distance(each)) < rank for each in asked)

    def _take(self, node: N, peer: P, named: Iterable[tuple[N, P]] | None) -> None:
        if named is None:
            self._counters.add("searches_unanswered")
            if node in self._named_by:
                self._silent[self._named_by[node]] += 1
            return
        self._answered[node] = peer
        for near, who in self._kept(list(named)):
            if who not in self._asked and near not in self._waiting:
                self._waiting[near] = who
                self._named_by[near] = peer

    def _kept(self, named: list[tuple[N, P]]) -> list[tuple[N, P]]:
        own_node, own_peer = self._own
        ids: dict[P, N] = {}
        for node, peer in named:
            if node != own_node and peer != own_peer:
                ids.setdefault(peer, node)
        kept = [(node, peer) for peer, node in ids.items()][:BUCKET]
        if refused := len(named) - len(kept):
            self._counters.add("neighbours_refused", refused)
        return kept


async def placed(
    near: Iterable[tuple[N, P]], put: Callable[[P], Awaitable[Iterable[bool] | None]]
) -> bool:
    """Whether any of the first :data:`REPLICAS` that answered took a record.

    Args:
        near: who is to keep it, nearest first.
        put: what a peer took; None where it does not answer.
    """
    left = list(near)
    answers: list[bool] = []
    while left and len(answers) < REPLICAS:
        count = REPLICAS - len(answers)
        taken = await asyncio.gather(*(put(peer) for _, peer in left[:count]))
        answers += [any(each) for each in taken if each is not None]
        del left[:count]
    return any(answers)
