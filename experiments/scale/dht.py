"""Simulated DHT: which nodes hold a record, and the cost of a call.

A record is held by the nodes whose ids are nearest to its key by XOR, as in Kademlia (Maymounkov
and Mazières, 2002). Unlike real nodes, these do not hand records to nearer nodes that join later. A
node that leaves takes its copies away.

Costs are fitted to counts among real peers: DHTs of 4 to 128 nodes with 0 to 64 records of about
450 bytes per key (``benchmarks/results/hash_table.json``). Requests and bytes are within 5 % of
each mean, hops within 10 %. A search asks the 20 nearest nodes. In larger DHTs it must find them
first; this part is extrapolated logarithmically with the slope of hivemind's search up to 4,096
nodes (``benchmarks/results/table_search.json``, within 2 %).

Bytes are those of requests and answers without the envelope of about 100 bytes per request. All
peers answer, and each has made two calls before.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import chain
from typing import NamedTuple

REPLICAS = 5
ID_BITS = 160


class Entry(NamedTuple):
    """A record and the ids of its holders."""

    value: bytes
    expiry: float
    ids: frozenset[int]


@dataclass(slots=True)
class KeyRecords:
    """Records under a key on one side of the network."""

    ids: tuple[int, ...] = ()  # ids of the nodes that a read asks
    entries: dict[bytes, Entry] = field(default_factory=dict)  # all records by subkey
    # Values that a node in ``ids`` holds, by subkey.
    found: dict[bytes, bytes] = field(default_factory=dict)
    size: int = 0  # bytes of ``found``
    next_expiry: float = float("inf")  # unix time of the first expiry in ``found``
    version: int = -1  # version of the membership for which ``ids`` and ``found`` are valid


def dht_id_of(peer: str) -> int:
    return int.from_bytes(sha1(peer.encode(), usedforsecurity=False).digest())


def nearest(ids: list[int], key: int, count: int = REPLICAS) -> tuple[int, ...]:
    """Return the ``count`` ids of a sorted list nearest to ``key`` by XOR, the nearest first."""
    for bits in range(ID_BITS + 1):
        low = key >> bits << bits
        begin, end = bisect_left(ids, low), bisect_left(ids, low + (1 << bits))
        if end - begin >= count or bits == ID_BITS:
            break
    return tuple(sorted(ids[begin:end], key=lambda dht_id: dht_id ^ key)[:count])


class RecordTable:
    """Records by side and key. A network that is not split has one side."""

    def __init__(self) -> None:
        self._sides: list[list[int]] = [[]]
        self._keys: list[dict[bytes, KeyRecords]] = [{}]
        self._version = 0

    def size(self, side: int) -> int:
        return len(self._sides[side])

    def join(self, dht_id: int, side: int = 0) -> None:
        insort(self._sides[side], dht_id)
        self._version += 1

    def leave(self, dht_id: int, side: int = 0) -> None:
        self._sides[side].remove(dht_id)
        self._version += 1

    def cut(self, second: Collection[int]) -> None:
        """Split the network: ids in ``second`` on side 1, all others on side 0."""
        (whole,), (keys,) = self._sides, self._keys
        self._sides = [[p for p in whole if p not in second], sorted(second)]
        copies = {key: KeyRecords(entries=dict(records.entries)) for key, records in keys.items()}
        self._keys = [keys, copies]
        self._version += 1

    def heal(self) -> None:
        """Merge the sides; of two records of an author, keep the one that expires later."""
        first, second = self._keys
        for key, records in second.items():
            entries = first.setdefault(key, KeyRecords()).entries
            for subkey, entry in records.entries.items():
                held = entries.get(subkey)
                if held is None or held.expiry < entry.expiry:
                    entries[subkey] = entry
        self._sides, self._keys = [sorted(chain(*self._sides))], [first]
        self._version += 1

    def records(self, side: int, key: bytes, now: float) -> KeyRecords:
        records = self._keys[side].get(key)
        if records is None:
            records = self._keys[side][key] = KeyRecords()
        if records.version != self._version:
            records.ids = nearest(self._sides[side], int.from_bytes(key))
            records.version = self._version
            self._find(records, now)
        elif records.next_expiry <= now:
            self._find(records, now)
        return records

    def put(
        self, records: KeyRecords, subkey: bytes, value: bytes, expiry: float, ids: frozenset[int]
    ) -> bool:
        """Put a record at some of the key's ids; return False if a later one exists."""
        held = records.entries.get(subkey)
        if held is not None and held.expiry >= expiry:
            return False
        records.entries[subkey] = Entry(value, expiry, ids)
        records.size += len(value) - len(records.found.get(subkey, b""))
        records.found[subkey] = value
        records.next_expiry = min(records.next_expiry, expiry)
        return True

    def values_at(self, records: KeyRecords, ids: Collection[int]) -> dict[bytes, bytes]:
        """Return the values that these ids hold, by subkey."""
        asked = frozenset(ids)
        return {
            subkey: value
            for subkey, value in records.found.items()
            if not asked.isdisjoint(records.entries[subkey].ids)
        }

    def max_records(self) -> int:
        return max((len(s.entries) for keys in self._keys for s in keys.values()), default=0)

    def expire(self, now: float) -> None:
        for keys in self._keys:
            for key in [k for k, s in keys.items() if _over(s, now)]:
                del keys[key]

    @staticmethod
    def _find(records: KeyRecords, now: float) -> None:
        asked = frozenset(records.ids)
        records.entries = {s: e for s, e in records.entries.items() if e.expiry > now}
        here = {s: e for s, e in records.entries.items() if not asked.isdisjoint(e.ids)}
        records.found = {subkey: entry.value for subkey, entry in here.items()}
        records.size = sum(map(len, records.found.values()))
        records.next_expiry = min((entry.expiry for entry in here.values()), default=float("inf"))


def _over(records: KeyRecords, now: float) -> bool:
    return all(entry.expiry <= now for entry in records.entries.values())


BUCKET_SIZE = 20  # nodes per bucket: maximum nodes in an answer, and nodes that a search must ask
KNOWN_NODES = 128  # up to this number of nodes, a search asks only the nearest
FINDS_A_DOUBLING = 0.95  # further requests per doubling of the nodes
FIND_BYTES = 46.0  # request of a search
ANSWER_BYTES = 26.3  # answer to it
NEIGHBOR_BYTES = 62.04  # each node in that answer
DICTIONARY_BYTES = 41.0  # records in that answer: a constant
ENTRY_FACTOR = 1.111  # and a factor for their bytes, because authors and expiries are added
STORE_BYTES = 103.0  # request to store, without the record
STORED_BYTES = 27.0  # answer to it
HOPS_A_FIND = 0.275  # a search keeps four requests in flight
STORE_HOPS = 1.0  # a store asks all replicas in parallel


@dataclass(frozen=True, slots=True)
class CallCost:
    """Mean cost of one call."""

    rpcs: float  # requests by the caller
    bytes_out: float  # bytes of these requests
    bytes_in: float  # bytes of their answers
    hops: float  # sequential requests until the call ends


def get_cost(nodes: int, dictionary_bytes: int) -> CallCost:
    """Return the cost of reading one key in a DHT of this many nodes, including the caller.

    Args:
        dictionary_bytes: bytes of the records under the key.

    Raises:
        ValueError: no nodes, or negative bytes.
    """
    _check(nodes, dictionary_bytes)
    finds = _finds(nodes)
    listed = max(0, min(BUCKET_SIZE, nodes - 2))
    dictionary = DICTIONARY_BYTES + ENTRY_FACTOR * dictionary_bytes if dictionary_bytes else 0.0
    return CallCost(
        rpcs=finds,
        bytes_out=finds * FIND_BYTES,
        bytes_in=finds * (ANSWER_BYTES + NEIGHBOR_BYTES * listed) + _replicas(nodes) * dictionary,
        hops=max(1.0, HOPS_A_FIND * finds) if finds else 0.0,
    )


def store_cost(nodes: int, record_bytes: int, dictionary_bytes: int = 0) -> CallCost:
    """Return the cost of storing one record in a DHT of this many nodes, including the caller.

    The search before the store is answered with the key's records, as a read is.

    Args:
        record_bytes: bytes of the record.
        dictionary_bytes: bytes of the records that are already under the key.

    Raises:
        ValueError: no nodes, or negative bytes.
    """
    _check(nodes, record_bytes)
    search, replicas = get_cost(nodes, dictionary_bytes), _replicas(nodes)
    return CallCost(
        rpcs=search.rpcs + replicas,
        bytes_out=search.bytes_out + replicas * (STORE_BYTES + record_bytes),
        bytes_in=search.bytes_in + replicas * STORED_BYTES,
        hops=search.hops + STORE_HOPS if replicas else 0.0,
    )


def _finds(nodes: int) -> float:
    doublings = max(0.0, math.log2(nodes / KNOWN_NODES))
    return min(BUCKET_SIZE, nodes - 1) + FINDS_A_DOUBLING * doublings


def _replicas(nodes: int) -> float:
    """Return the number of replicas on other nodes than the caller."""
    return min(REPLICAS, nodes) * (nodes - 1) / nodes


def _check(nodes: int, size: int) -> None:
    if nodes < 1 or size < 0:
        raise ValueError(f"nodes={nodes} and bytes={size}: use at least 1 and 0")
