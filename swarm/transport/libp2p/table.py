"""Which nodes of the hash table this one knows: Kademlia's buckets, one id for each peer."""

from __future__ import annotations

from secrets import token_bytes

from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.transport.guests import Guests
from swarm.transport.libp2p.calls import NODE_BYTES, Neighbour
from swarm.transport.search import BUCKET

SAME_ID_SECONDS = 10.0
"""A peer that restarts comes back under another id; one is taken in this time."""

MAX_PEERS = 4096


class RoutingTable:
    """Nodes by the length of the prefix that their ids share with this node's.

    A full bucket keeps whom it has: who was heard of longest ago is to be asked whether it is still
    there, and gives way to the newest of those that wait where it is not (Maymounkov and Mazieres,
    2002).

    Attributes:
        own: this node's id.
    """

    def __init__(self, own: bytes, guests: Guests, counters: Counters) -> None:
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

    def id_of(self, peer: str) -> bytes | None:
        """The node id of a peer that is known."""
        return self._ids.get(peer)

    def seen(self, node_id: bytes, peer: str) -> Neighbour | None:
        """Note a node that was heard of; the node to be asked whether it is still there."""
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
        """Drop a node that does not answer; the newest that waited takes its place.

        A peer that came back under other ids waits under several, and has a place under one: what
        stands under another would be nobody's to drop.
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
        """The nodes known nearest to a key, nearest first, without the asker."""
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
    """Kademlia's distance: the XOR, read as a big-endian number."""
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
