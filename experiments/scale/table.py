"""Who holds which record of a simulated hash table; what a call costs is another matter.

A record lies at the nodes whose ids are nearest to its key by XOR, as in Kademlia (Maymounkov and
Mazières, 2002), and stays where it was put: a newcomer that is nearer is not handed it, which real
nodes do. Whoever leaves takes its copies away.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import chain
from typing import NamedTuple

REPLICAS = 5
ID_BITS = 160


class Entry(NamedTuple):
    """A record and the places that it was put at."""

    value: bytes
    expiry: float
    places: frozenset[int]


@dataclass(slots=True)
class Shelf:
    """A key as one side of the network has it.

    Attributes:
        places: of the nodes that are asked for it.
        entries: every record, by subkey.
        found: values of those that lie at one of ``places``, by subkey.
        size: bytes of the values found.
        ends: unix time at which the first of them expires.
        version: of the membership that ``places`` and ``found`` hold for.
    """

    places: tuple[int, ...] = ()
    entries: dict[bytes, Entry] = field(default_factory=dict)
    found: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0
    ends: float = float("inf")
    version: int = -1


def place_of(peer: str) -> int:
    """Where a peer stands among the ids."""
    return int.from_bytes(sha1(peer.encode(), usedforsecurity=False).digest())


def nearest(places: list[int], key: int, count: int = REPLICAS) -> tuple[int, ...]:
    """The ``count`` places nearest to ``key`` by XOR, of sorted ones; the nearest first."""
    for bits in range(ID_BITS + 1):
        low = key >> bits << bits
        begin, end = bisect_left(places, low), bisect_left(places, low + (1 << bits))
        if end - begin >= count or bits == ID_BITS:
            break
    return tuple(sorted(places[begin:end], key=lambda place: place ^ key)[:count])


class Table:
    """Records by side and key. There is one side unless the network is cut."""

    def __init__(self) -> None:
        self._sides: list[list[int]] = [[]]
        self._shelves: list[dict[bytes, Shelf]] = [{}]
        self._version = 0

    def size(self, side: int) -> int:
        """Nodes on a side."""
        return len(self._sides[side])

    def join(self, place: int, side: int = 0) -> None:
        """Let a node hold records."""
        insort(self._sides[side], place)
        self._version += 1

    def leave(self, place: int, side: int = 0) -> None:
        """Take a node and its copies away."""
        self._sides[side].remove(place)
        self._version += 1

    def cut(self, second: Collection[int]) -> None:
        """Part the network: those of ``second`` on side 1, all others on side 0."""
        (whole,), (shelves,) = self._sides, self._shelves
        self._sides = [[p for p in whole if p not in second], sorted(second)]
        copies = {key: Shelf(entries=dict(shelf.entries)) for key, shelf in shelves.items()}
        self._shelves = [shelves, copies]
        self._version += 1

    def heal(self) -> None:
        """Make it one network again; of two records of an author the one that ends later stays."""
        first, second = self._shelves
        for key, shelf in second.items():
            entries = first.setdefault(key, Shelf()).entries
            for subkey, entry in shelf.entries.items():
                held = entries.get(subkey)
                if held is None or held.expiry < entry.expiry:
                    entries[subkey] = entry
        self._sides, self._shelves = [sorted(chain(*self._sides))], [first]
        self._version += 1

    def shelf(self, side: int, key: bytes, now: float) -> Shelf:
        """What there is under a key now."""
        shelf = self._shelves[side].get(key)
        if shelf is None:
            shelf = self._shelves[side][key] = Shelf()
        if shelf.version != self._version:
            shelf.places = nearest(self._sides[side], int.from_bytes(key))
            shelf.version = self._version
            self._find(shelf, now)
        elif shelf.ends <= now:
            self._find(shelf, now)
        return shelf

    def put(
        self,
        shelf: Shelf,
        subkey: bytes,
        value: bytes,
        expiry: float,
        places: frozenset[int],
    ) -> bool:
        """Put a record at some places of a shelf; False where a later one is there."""
        held = shelf.entries.get(subkey)
        if held is not None and held.expiry >= expiry:
            return False
        shelf.entries[subkey] = Entry(value, expiry, places)
        shelf.size += len(value) - len(shelf.found.get(subkey, b""))
        shelf.found[subkey] = value
        shelf.ends = min(shelf.ends, expiry)
        return True

    def heard(self, shelf: Shelf, places: Collection[int]) -> dict[bytes, bytes]:
        """Values by subkey that some of a shelf's places have between them."""
        asked = frozenset(places)
        return {
            subkey: value
            for subkey, value in shelf.found.items()
            if not asked.isdisjoint(shelf.entries[subkey].places)
        }

    def most(self) -> int:
        """Records under the key that has most of them."""
        return max(
            (len(s.entries) for shelves in self._shelves for s in shelves.values()), default=0
        )

    def forget(self, now: float) -> None:
        """Drop keys under which every record has expired."""
        for shelves in self._shelves:
            for key in [k for k, s in shelves.items() if _over(s, now)]:
                del shelves[key]

    @staticmethod
    def _find(shelf: Shelf, now: float) -> None:
        asked = frozenset(shelf.places)
        shelf.entries = {s: e for s, e in shelf.entries.items() if e.expiry > now}
        here = {s: e for s, e in shelf.entries.items() if not asked.isdisjoint(e.places)}
        shelf.found = {subkey: entry.value for subkey, entry in here.items()}
        shelf.size = sum(map(len, shelf.found.values()))
        shelf.ends = min((entry.expiry for entry in here.values()), default=float("inf"))


def _over(shelf: Shelf, now: float) -> bool:
    return all(entry.expiry <= now for entry in shelf.entries.values())
