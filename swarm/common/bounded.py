"""A bounded map that no flood of new keys can take over: places are drawn by lot, not by arrival.

Each key has a rank that outsiders can neither choose nor foresee, and the lowest ranks stay. So of
all strangers that ever came, each had the same chance, whoever came first and however often; the
known come before them (bottom-k sampling, Cohen and Kaplan, PODC 2007).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterator
from hashlib import blake2b
from typing import Generic, TypeVar

from swarm.common.known_peers import KNOWN

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

WEIGHT = 16.0
"""How much a little standing, below ``KNOWN``, helps in the draw."""


def lot(secret: bytes, *parts: bytes) -> float:
    """A number in [0, 1) that is a function of all arguments and looks drawn without the secret."""
    digest = blake2b(key=secret[:64], digest_size=8)
    for part in parts:
        digest.update(len(part).to_bytes(4, "big") + part)
    return int.from_bytes(digest.digest(), "big") / 2**64


def rank_of(drawn: float, standing: float) -> float:
    """Rank of who drew ``drawn`` in [0, 1): negative for the known, the more so the better."""
    return -standing if standing >= KNOWN else drawn / (1.0 + WEIGHT * standing)


class Bounded(Generic[K, V]):
    """At most ``limit`` keys with their values, those of the lowest ranks among all that came.

    Args:
        rank: of a key, asked whenever it is put; equal ranks: whoever came first stays.
    """

    def __init__(self, limit: int, rank: Callable[[K], float]) -> None:
        self._limit = limit
        self._rank = rank
        self._values: dict[K, V] = {}
        self._ranks: dict[K, float] = {}
        self._worst: list[tuple[float, int, K]] = []
        self._number = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[K]:
        return iter(self._values)

    def get(self, key: K) -> V | None:
        """The value of a key, None where it is not held."""
        return self._values.get(key)

    def rank(self, key: K) -> float:
        """The rank of a held key, as of when it was last put."""
        return self._ranks[key]

    def values(self) -> list[V]:
        """All values."""
        return list(self._values.values())

    def put(self, key: K, value: V) -> K | None:
        """Hold a key with its value; the key that has no place any more, which may be this one."""
        rank = self._rank(key)
        if self._ranks.get(key) != rank:
            if key not in self._values and len(self._values) >= self._limit:
                worst = self._top()
                if rank >= self._ranks[worst]:
                    return key
                self.pop(worst)
            else:
                worst = None
            self._note(key, rank)
        else:
            worst = None
        self._values[key] = value
        return worst

    def pop(self, key: K) -> V | None:
        """Forget a key; its value."""
        self._ranks.pop(key, None)
        return self._values.pop(key, None)

    def worst(self) -> K | None:
        """The key that would have to go next; None where nothing is held."""
        return self._top() if self._values else None

    def _note(self, key: K, rank: float) -> None:
        self._ranks[key] = rank
        self._number += 1
        heapq.heappush(self._worst, (-rank, self._number, key))
        if len(self._worst) > 2 * len(self._ranks) + 16:
            alive = [entry for entry in self._worst if self._ranks.get(entry[2]) == -entry[0]]
            self._worst = list({entry[2]: entry for entry in sorted(alive, reverse=True)}.values())
            heapq.heapify(self._worst)

    def _top(self) -> K:
        while self._ranks.get(self._worst[0][2]) != -self._worst[0][0]:
            heapq.heappop(self._worst)
        return self._worst[0][2]
