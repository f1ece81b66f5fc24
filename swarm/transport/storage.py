"""A node's share of the hash table: so many keys, so many records, drawn by lot.

Wraps hivemind's own storage, of which it imports nothing, or one that has its methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from secrets import token_bytes
from typing import Any

from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot, rank_of
from swarm.transport.records import MAX_SUBKEYS
from swarm.transport.request_limits import Guests

MAX_KEYS = 256
MAX_RECORDS = 16_384
"""Over all keys; a record with its author takes about 1.5 KiB."""

MAX_VERSIONS = 64
"""Times that the record of an author and epoch may be replaced by a later one."""


class BoundedStorage:
    """Dictionaries of records only; which ones stay beyond the bounds is no matter of arrival.

    The records of authors of standing come first, the others were drawn. Neither can a flood of
    made-up authors push out those already there, nor can one that came early shut out the later.

    Args:
        stored: told the key and the value of every record that is kept.
    """

    def __init__(
        self,
        storage: Any,
        counters: Counters,
        guests: Guests,
        stored: Callable[[Any, bytes], None] = lambda key, value: None,
    ) -> None:
        self._storage = storage
        self._counters = counters
        self._stored = stored
        self._standings = guests.standings
        self._secret = token_bytes(32)
        self._keys: Bounded[Any, Bounded[bytes, None]] = Bounded(MAX_KEYS, self._rank_of_key)
        self._versions: dict[Any, Counter[bytes]] = {}
        self._best: dict[Any, float] = {}

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Keep a record under ``key`` and ``subkey``; a value without a subkey is refused."""
        if subkey is None:
            return False
        return self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Keep a record if it is later than the one there and drew a place."""
        self._forget_expired()
        entry = self._storage.get(key)
        present = entry.value.get(subkey) if entry is not None else None
        if present is not None:
            if present.expiration_time >= expiration_time:
                return False
            versions = self._versions[key]
            if versions[subkey] >= MAX_VERSIONS:
                return self._full("versions")
            versions[subkey] += 1
        elif not self._draw(key, subkey):
            return False
        if not self._storage.store_subkey(key, subkey, value, expiration_time):
            return False
        self._stored(key, value)
        return True

    def get(self, key: Any) -> Any:
        """The dictionary under ``key`` with its expiry, or None."""
        return self._storage.get(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys with their dictionaries."""
        return iter(self._storage.items())

    def _draw(self, key: Any, subkey: bytes) -> bool:
        """Whether a new record has a place; whoever loses his to it is dropped."""
        subkeys = self._open(key, self._standings.of(subkey))
        if subkeys is None:
            return False
        loser = subkeys.put(subkey, None)
        if loser is not None:
            self._full("subkeys")
            if loser == subkey:
                return False
            self._drop(key, loser)
        return not self._over(key, subkey)

    def _open(self, key: Any, standing: float) -> Bounded[bytes, None] | None:
        """The records of a key, which counts for as much as the best of its authors."""
        subkeys = self._keys.get(key)
        if subkeys is not None and standing <= self._best[key]:
            return subkeys
        self._best[key] = standing
        if subkeys is None:
            subkeys = Bounded(MAX_SUBKEYS, lambda author: self._rank(key, author))
        loser = self._keys.put(key, subkeys)
        if loser is not None:
            self._full("keys")
            self._drop_key(loser)
        if loser == key:
            return None
        self._versions.setdefault(key, Counter())
        return subkeys

    def _over(self, key: Any, subkey: bytes) -> bool:
        """Whether the records of all keys are too many and this one had to go."""
        if sum(map(len, self._keys.values())) <= MAX_RECORDS:
            return False
        self._full("records")
        fullest = max(self._keys, key=lambda each: len(self._keys.get(each) or ()))
        subkeys = self._keys.get(fullest)
        loser = subkeys.worst() if subkeys else None
        if loser is None:
            return False
        self._drop(fullest, loser)
        return fullest == key and loser == subkey

    def _drop(self, key: Any, subkey: bytes) -> None:
        subkeys, entry = self._keys.get(key), self._storage.get(key)
        if subkeys is not None:
            subkeys.pop(subkey)
        if entry is not None and subkey in entry.value:
            del entry.value[subkey]
        self._versions[key].pop(subkey, None)

    def _drop_key(self, key: Any) -> None:
        self._keys.pop(key)
        self._best.pop(key, None)
        self._versions.pop(key, None)
        del self._storage[key]

    def _forget_expired(self) -> None:
        if len(self._storage) < len(self._keys):
            for key in [key for key in self._keys if key not in self._storage]:
                self._drop_key(key)

    def _rank(self, key: Any, author: bytes) -> float:
        return rank_of(lot(self._secret, str(key).encode(), author), self._standings.of(author))

    def _rank_of_key(self, key: Any) -> float:
        return rank_of(lot(self._secret, str(key).encode()), self._best.get(key, 0.0))

    def _full(self, bound: str) -> bool:
        self._counters.add("records_over_bound", bound=bound)
        return False
