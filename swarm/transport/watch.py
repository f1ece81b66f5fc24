"""Who is told of records as they come to this node's part of the hash table."""

from __future__ import annotations

from collections.abc import Callable, Collection

from protocol.keys import dht_key_of
from swarm.common.counters import Counters

MAX_TOLD = 128
"""Records told of for one set of keys. A node is given some twenty to hold in an epoch, however
large its swarm: four versions of every author's go to five nodes each."""

Heard = Callable[[bytes], None]
"""Takes a record's value."""


class Watch:
    """Tells of records under some keys, so many at most, whoever floods them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._keys: frozenset[bytes] = frozenset()
        self._heard: Heard | None = None
        self._left = 0

    def begin(self, keys: Collection[str], heard: Heard) -> None:
        """Tell ``heard`` from now on, of records under ``keys`` and of no others."""
        self._keys = frozenset(map(dht_key_of, keys))
        self._heard = heard
        self._left = MAX_TOLD

    def stored(self, key: bytes, value: bytes) -> None:
        """Tell of a record that was checked and is held now.

        Args:
            key: hashed, as the hash table knows it.
        """
        if self._heard is None or key not in self._keys:
            return
        if not self._left:
            self._counters.add("records_not_told")
            return
        self._left -= 1
        self._heard(value)
