"""What a hivemind routing table lets in: one node id for each peer, and a bounded waiting list.

hivemind takes any number of ids from one peer, keeps every one that has no place as a replacement,
and goes through all its records for each new one. Works on the objects that
:mod:`swarm.transport.hivemind.node` hands over and imports nothing of hivemind.
"""

from __future__ import annotations

from secrets import token_bytes
from typing import Any

from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.transport.guests import Guests

SAME_ID_SECONDS = 10.0
"""A peer that restarts comes back under another id; one is taken in this time."""

MAX_PEERS = 4096


def guard_routing(protocol: Any, counters: Counters, guests: Guests) -> None:
    """Put the rule before the method of a ``DHTProtocol``."""
    protocol.update_routing_table = OneIdEach(protocol, counters, guests).update


def be_client(protocol: Any) -> None:
    """Have a ``DHTProtocol`` serve whoever asks, its clock above all, and name no node of its own.

    Whom nobody can dial holds no record for others, and is in nobody's routing table.
    """
    protocol.client_mode = True
    protocol.node_info = type(protocol.node_info)()


class OneIdEach:
    """Stands before ``DHTProtocol.update_routing_table``."""

    def __init__(self, protocol: Any, counters: Counters, guests: Guests) -> None:
        secret = token_bytes(32)
        self._table = protocol.routing_table
        self._update = protocol.update_routing_table
        self._counters = counters
        self._guests = guests
        self._taken: Bounded[str, float] = Bounded(MAX_PEERS, lambda p: lot(secret, p.encode()))

    async def update(self, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        """As hivemind's method of the same purpose, for ids that may come in."""
        if responded and node_id is not None and not self._may(node_id, peer_id):
            self._counters.add("routing_refused")
            return
        await self._update(node_id, peer_id, responded=responded)
        if node_id is not None:
            self._trim(node_id)

    def _may(self, node_id: Any, peer_id: Any) -> bool:
        if self._table.uid_to_peer_id.get(node_id, peer_id) != peer_id:
            return False
        present = self._table.peer_id_to_uid.get(peer_id)
        if present == node_id:
            return True
        now, peer = self._guests.clock.monotonic(), str(peer_id)
        taken = self._taken.get(peer)
        if taken is not None and now < taken + SAME_ID_SECONDS:
            return False
        self._taken.put(peer, now)
        if present is not None and present in self._table.uid_to_peer_id:
            del self._table[present]
        return True

    def _trim(self, node_id: Any) -> None:
        bucket = self._table.buckets[self._table.get_bucket_index(node_id)]
        while len(bucket.replacement_nodes) > bucket.size:
            del self._table[next(iter(bucket.replacement_nodes))]
