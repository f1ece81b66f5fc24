"""The records of one key as they lie in the hash table and go over the wire."""

from __future__ import annotations

import math
from collections.abc import ItemsView, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgpack

from swarm.common.clock import Clock


class Entry(NamedTuple):
    """A value and the unix time at which it expires, seconds."""

    value: Any
    expiration_time: float


class Dictionary:
    """Values by subkey, a later expiration in place of an earlier one.

    It has the methods that :mod:`swarm.transport.records` and :mod:`swarm.transport.storage` call
    on hivemind's ``DictionaryDHTValue``.
    """

    def __init__(self, limit: object = None) -> None:
        self._entries: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, subkey: object) -> bool:
        return subkey in self._entries

    def __delitem__(self, subkey: bytes) -> None:
        del self._entries[subkey]

    @property
    def latest(self) -> float:
        """The latest expiration; minus infinity where nothing is held."""
        return max((entry.expiration_time for entry in self._entries.values()), default=-math.inf)

    def get(self, subkey: bytes) -> Entry | None:
        """The entry under a subkey."""
        return self._entries.get(subkey)

    def items(self) -> ItemsView[bytes, Entry]:
        """All subkeys with their entries."""
        return self._entries.items()

    @contextmanager
    def freeze(self) -> Iterator[None]:
        """Nothing goes by itself here in any case."""
        yield

    def store(self, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Keep an entry; False where one that ends no earlier is there."""
        present = self._entries.get(subkey)
        if present is not None and present.expiration_time >= expiration_time:
            return False
        self._entries[subkey] = Entry(value, expiration_time)
        return True

    def forget(self, now: float) -> None:
        """Drop what has expired."""
        for subkey in [s for s, e in self._entries.items() if e.expiration_time <= now]:
            del self._entries[subkey]

    def packb(self) -> bytes:
        """``[inf, latest expiration, [[subkey, value, expiration], …]]`` in msgpack."""
        entries = [[s, e.value, e.expiration_time] for s, e in self._entries.items()]
        return bytes(msgpack.packb([math.inf, self.latest, entries]))


class Shelf:
    """Dictionaries by key, without what has expired; beneath a ``BoundedStorage``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._dictionaries: dict[bytes, Dictionary] = {}

    def __len__(self) -> int:
        self._sweep()
        return len(self._dictionaries)

    def __contains__(self, key: object) -> bool:
        return key in self._dictionaries

    def __delitem__(self, key: bytes) -> None:
        self._dictionaries.pop(key, None)

    def get(self, key: bytes) -> Entry | None:
        """The dictionary under a key and when the last of it expires."""
        found = self._dictionaries.get(key)
        if found is None:
            return None
        found.forget(self._clock.time())
        if not len(found):
            return None
        return Entry(found, found.latest)

    def items(self) -> list[tuple[bytes, Entry]]:
        """All keys with their dictionaries."""
        self._sweep()
        return [(key, Entry(held, held.latest)) for key, held in self._dictionaries.items()]

    def store_subkey(self, key: bytes, subkey: bytes, value: bytes, expiration_time: float) -> bool:
        """Keep a record; False where it has expired, or a later one is there."""
        if expiration_time <= self._clock.time():
            return False
        return self._dictionaries.setdefault(key, Dictionary()).store(
            subkey, value, expiration_time
        )

    def _sweep(self) -> None:
        now = self._clock.time()
        for key, held in list(self._dictionaries.items()):
            held.forget(now)
            if not len(held):
                del self._dictionaries[key]
