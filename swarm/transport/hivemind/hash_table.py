"""Reads and stores of a hivemind ``DHTNode``, by searches that no peer leads astray.

hivemind's own search goes on for as long as it is given nearer ids, holds places among the nearest
for nodes that never answer, and loses what it had found when its time is up. Works on the objects
that :mod:`swarm.transport.hivemind.node` hands over and imports nothing of hivemind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from protocol.keys import dht_key_of
from swarm.common.counters import Counters
from swarm.transport.records import DictionaryRecord, RecordGate
from swarm.transport.search import BUCKET, Search, placed

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kinds:
    """What is made of hivemind's classes.

    Attributes:
        request: its ``FindRequest``.
        dictionary: its ``DictionaryDHTValue``.
        found_dictionary: the type of a result that has one.
    """

    request: type[Any]
    dictionary: type[Any]
    found_dictionary: int


class HashTable:
    """One node's way to the records of all.

    Args:
        dht: hivemind's ``DHTNode``, which answers the others and keeps this node's share.
        gate: the check of records.
    """

    def __init__(self, dht: Any, kinds: Kinds, gate: RecordGate, counters: Counters) -> None:
        self._dht = dht
        self._protocol = dht.protocol
        self._kinds = kinds
        self._gate = gate
        self._counters = counters

    async def find_neighbours(self) -> None:
        """Get to know the nodes nearest to this one."""
        await self._nearest(self._dht.node_id)

    async def read(self, key: str) -> dict[bytes, bytes]:
        """The latest record of each author under ``key``, over all nodes near it."""
        key_id = self._node_of(dht_key_of(key))
        merged = self._kinds.dictionary()

        def take(records: Any) -> None:
            for subkey, (value, expiry) in records.items():
                merged.store(subkey, value, expiry)

        if (held := self._protocol.storage.get(key_id)) is not None:
            take(held.value)
        await self._nearest(key_id, take)
        loads = self._protocol.serializer.loads
        return {subkey: loads(entry.value) for subkey, entry in merged.items()}

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Put a record at the nodes nearest to its key; whether any of them took it."""
        key_id = self._node_of(dht_key_of(key))
        dumps = self._protocol.serializer.dumps
        packed = dumps(value)
        near = await self._nearest(key_id)
        if not self._protocol.client_mode:
            near.append((self._dht.node_id, self._dht.peer_id))
        near.sort(key=lambda pair: int(key_id.xor_distance(pair[0])))

        async def put(peer: Any) -> Iterable[bool] | None:
            if peer != self._dht.peer_id:
                stored: Iterable[bool] | None = await self._protocol.call_store(
                    peer, [key_id], [packed], [expiry], [subkey]
                )
                return stored
            record = DictionaryRecord(key_id.to_bytes(), dumps(subkey), packed, expiry)
            storage = self._protocol.storage
            return [self._gate.validate(record) and storage.store(key_id, packed, expiry, subkey)]

        return await placed(near, put)

    def _node_of(self, raw: bytes) -> Any:
        return type(self._dht.node_id).from_bytes(raw)

    async def _nearest(
        self, key_id: Any, take: Callable[[Any], None] = lambda records: None
    ) -> list[tuple[Any, Any]]:
        """The nodes that answered of those nearest to a key; ``take`` is given their records."""

        async def ask(peer: Any) -> tuple[Any, list[tuple[Any, Any]]] | None:
            return await self._find(peer, key_id, take)

        own = self._dht.node_id, self._dht.peer_id
        search = Search(own, key_id.xor_distance, ask, self._counters)
        table = self._protocol.routing_table
        return await search.nearest(table.get_nearest_neighbors(key_id, BUCKET, exclude=own[0]))

    async def _find(
        self, peer: Any, key_id: Any, take: Callable[[Any], None]
    ) -> tuple[Any, list[tuple[Any, Any]]] | None:
        """A peer's own id, None of a client, and its neighbours; None where it does not answer, or
        nonsense."""
        protocol, node = self._protocol, None
        request = self._kinds.request(keys=[key_id.to_bytes()], peer=protocol.node_info)
        try:
            async with protocol.rpc_semaphore:
                stub = protocol.get_stub(peer)
                response = await stub.rpc_find(request, timeout=protocol.wait_timeout)
        except Exception as error:  # noqa: BLE001
            logger.debug("peer %s does not answer a search: %r", peer, error)
            await protocol.update_routing_table(None, peer, responded=False)
            return None
        try:
            (result,) = response.results
            named = self._named(result)
            if result.type == self._kinds.found_dictionary:
                take(self._records(key_id, result.value))
            if response.peer.node_id:
                node = self._node_of(response.peer.node_id)
                await protocol.update_routing_table(node, peer, responded=True)
        except (ValueError, AssertionError) as error:
            self._counters.add("dht_answers_refused")
            logger.debug("peer %s answers a search with nonsense: %r", peer, error)
            return None
        return node, named

    def _named(self, result: Any) -> list[tuple[Any, Any]]:
        """The first neighbours of an answer: to read an id costs much more than to send one."""
        nodes, peers = result.nearest_node_ids, result.nearest_peer_ids
        if refused := max(0, len(nodes) - BUCKET - 1):
            self._counters.add("neighbours_refused", refused)
        few = slice(BUCKET + 1)
        pairs = zip(nodes[few], peers[few], strict=True)
        peer_of = type(self._dht.peer_id)
        return [(self._node_of(node), peer_of(peer)) for node, peer in pairs]

    def _records(self, key_id: Any, packed: bytes) -> Any:
        """Of a packed dictionary the records that hold.

        Raises:
            ValueError: it is none.
        """
        found = self._protocol.serializer.loads(packed)
        if not isinstance(found, self._kinds.dictionary):
            raise ValueError("a value without subkeys")
        self._gate.prune(key_id.to_bytes(), found)
        return found
