"""The Kademlia routing table of a DHT node, and the records that the node stores."""

from __future__ import annotations

from secrets import token_bytes

from protocol.announcement import dht_key_of
from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.transport.hivemind.dht import BoundedStorage
from swarm.transport.libp2p.calls import NODE_BYTES, Dictionary, Neighbour, Shelf, Stored
from swarm.transport.records import DictionaryRecord, RecordGate, StrictSerializer
from swarm.transport.request_limits import PeerLimits
from swarm.transport.search import BUCKET

SAME_ID_SECONDS = 10.0
"""A peer that restarts returns with a new node id; one is accepted per this time."""

MAX_PEERS = 4096


class RoutingTable:
    """Known nodes by the length of the id prefix shared with this node.

    A full bucket keeps its nodes. The node not seen for longest is pinged; if it does not answer,
    the newest waiting node replaces it (Maymounkov and Mazieres, 2002). Each peer has one node id.
    """

    def __init__(self, own: bytes, guests: PeerLimits, counters: Counters) -> None:
        secret = token_bytes(32)
        self.own = own
        self._guests = guests
        self._counters = counters
        self._buckets: list[dict[bytes, str]] = [{} for _ in range(8 * NODE_BYTES + 1)]
        self._waiting: list[dict[bytes, str]] = [{} for _ in self._buckets]
        self._ids: dict[str, bytes] = {}
        self._taken: Bounded[str, float] = Bounded(MAX_PEERS, lambda p: lot(secret, p.encode()))

    def __contains__(self, node_id: bytes) -> bool:
        return node_id in self._buckets[self._place(node_id)]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def seen(self, node_id: bytes, peer: str) -> Neighbour | None:
        """Note a node; return the node to ping if its bucket is full."""
        if not self._may(node_id, peer):
            self._counters.add("routing_refused")
            return None
        place = self._place(node_id)
        bucket, waiting = self._buckets[place], self._waiting[place]
        if bucket.pop(node_id, None) is not None or len(bucket) < BUCKET:
            waiting.pop(node_id, None)
            bucket[node_id] = peer
            self._ids[peer] = node_id
            return None
        waiting.pop(node_id, None)
        waiting[node_id] = peer
        if len(waiting) > BUCKET:
            del waiting[next(iter(waiting))]
        return next(iter(bucket.items()))

    def forget(self, peer: str) -> None:
        """Drop a node that does not answer; the newest waiting node replaces it.

        A peer waiting under several ids gets one place only, because no other could be dropped.
        """
        node_id = self._ids.pop(peer, None)
        if node_id is None:
            return
        place = self._place(node_id)
        bucket, waiting = self._buckets[place], self._waiting[place]
        if bucket.pop(node_id, None) is None:
            return
        while waiting:
            newest, theirs = waiting.popitem()
            if theirs not in self._ids:
                bucket[newest] = theirs
                self._ids[theirs] = newest
                return

    def nearest(self, key: bytes, count: int, asker: str = "") -> list[Neighbour]:
        """Return the known nodes nearest to a key, nearest first, without the asker."""
        known = [pair for bucket in self._buckets for pair in bucket.items() if pair[1] != asker]
        return sorted(known, key=lambda pair: distance(key, pair[0]))[:count]

    def _may(self, node_id: bytes, peer: str) -> bool:
        place = self._place(node_id)
        if node_id == self.own or self._buckets[place].get(node_id, peer) != peer:
            return False
        present = self._ids.get(peer)
        if present == node_id:
            return True
        now = self._guests.clock.monotonic()
        taken = self._taken.get(peer)
        if taken is not None and now < taken + SAME_ID_SECONDS:
            return False
        self._taken.put(peer, now)
        if present is not None:
            self._buckets[self._place(present)].pop(present, None)
            del self._ids[peer]
        return True

    def _place(self, node_id: bytes) -> int:
        return 8 * NODE_BYTES - distance(self.own, node_id).bit_length()


def distance(one: bytes, other: bytes) -> int:
    """Return Kademlia's distance: the XOR of both ids as a big-endian number."""
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")


class RecordShare:
    """The records that this node stores, and a reader for those of other nodes."""

    def __init__(self, counters: Counters, guests: PeerLimits) -> None:
        self._serializer = StrictSerializer(Dictionary)
        self.gate = RecordGate(self._serializer, counters)
        self._storage = BoundedStorage(Shelf(guests.clock), counters, guests, self.gate.stored)

    def record(self, key: str, subkey: bytes, value: bytes, expiry: float) -> Stored:
        """Return a record in its wire form."""
        pack = self._serializer.dumps
        return Stored(dht_key_of(key), pack(subkey), pack(value), expiry)

    def keep(self, record: Stored) -> bool:
        """Store a record, or all valid ones of a dictionary; return whether it succeeded.

        Returns False if nothing is valid; raises ``ValueError`` if it is neither.
        """
        if record.subkey:
            checked = DictionaryRecord(record.key, record.subkey, record.value, record.expiration)
            if not self.gate.validate(checked):
                return False
            subkey = self._serializer.loads(record.subkey)
            return self._storage.store(record.key, record.value, record.expiration, subkey)
        found = self.read(record.key, record.value)
        kept = [
            self._storage.store(record.key, entry.value, entry.expiration_time, subkey)
            for subkey, entry in found.items()
        ]
        return bool(kept) and all(kept)

    def held(self, key: bytes) -> Stored | None:
        """Return the packed dictionary under a key, None if there is none."""
        entry = self._storage.get(key)
        if entry is None:
            return None
        return Stored(key, b"", self._serializer.dumps(entry.value), entry.expiration_time)

    def held_keys(self) -> list[bytes]:
        """Return all keys that have records."""
        return [key for key, _ in self._storage.items()]

    def read(self, key: bytes, packed: bytes) -> Dictionary:
        """Return a packed dictionary's valid records; raises ``ValueError`` if it is none."""
        found = self._serializer.loads(packed)
        if not isinstance(found, Dictionary):
            raise ValueError("a value without subkeys")
        self.gate.prune(key, found)
        return found

    def plain(self, packed: bytes) -> bytes:
        """Return the value of a valid record."""
        value = self._serializer.loads(packed)
        assert isinstance(value, bytes), "the gate lets no other in"
        return value
