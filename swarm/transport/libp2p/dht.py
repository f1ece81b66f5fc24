"""A node of hivemind's DHT: its routing table, calls, searches and records."""

from __future__ import annotations

import logging
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from secrets import token_bytes
from typing import Any

from protocol.announcement import dht_key_of
from swarm.common.counters import Counters
from swarm.common.util import BackgroundTasks
from swarm.transport.hivemind.dht import BoundedStorage, NewIds
from swarm.transport.libp2p import calls
from swarm.transport.libp2p.calls import FIND, PING, STORE, Neighbour, Result
from swarm.transport.node import StreamHandler
from swarm.transport.protobuf import Fields, decode, encode, several, varints
from swarm.transport.records import MESSAGE_LIMIT, DictionaryRecord, RecordGate, StrictSerializer
from swarm.transport.request_limits import CallBudget, PeerLimits, Service
from swarm.transport.search import BUCKET, REPLICAS, Answer, Search, placed
from swarm.transport.streams import LENGTH_VARINT, serve
from swarm.transport.transport import HandlerLimits, Refusal, TransportError

logger = logging.getLogger(__name__)


class RoutingTable:
    """Known nodes by the length of the id prefix shared with this node.

    A full bucket keeps its nodes. The node not seen for longest is pinged; if it does not answer,
    the newest waiting node replaces it (Maymounkov and Mazieres, 2002). Each peer has one node id.
    """

    def __init__(self, own: bytes, peer_limits: PeerLimits, counters: Counters) -> None:
        self.own = own
        self._new_ids = NewIds(peer_limits.clock)
        self._counters = counters
        self._buckets: list[dict[bytes, str]] = [{} for _ in range(8 * calls.NODE_BYTES + 1)]
        self._waiting: list[dict[bytes, str]] = [{} for _ in self._buckets]
        self._ids: dict[str, bytes] = {}

    def __contains__(self, node_id: bytes) -> bool:
        return node_id in self._buckets[self._place(node_id)]

    def __len__(self) -> int:
        return sum(map(len, self._buckets))

    def seen(self, node_id: bytes, peer: str) -> Neighbour | None:
        """Note a node; return the node to ping if its bucket is full."""
        if not self._may(node_id, peer):
            self._counters.add("routing_refused")
            return None
        index = self._place(node_id)
        bucket, replacements = self._buckets[index], self._waiting[index]
        if bucket.pop(node_id, None) is not None or len(bucket) < BUCKET:
            replacements.pop(node_id, None)
            bucket[node_id] = peer
            self._ids[peer] = node_id
            return None
        replacements.pop(node_id, None)
        replacements[node_id] = peer
        if len(replacements) > BUCKET:
            del replacements[next(iter(replacements))]
        return next(iter(bucket.items()))

    def forget(self, peer: str) -> None:
        """Drop a node that does not answer; the newest waiting node replaces it.

        A peer waiting under several ids gets one place only, because no other could be dropped.
        """
        node_id = self._ids.pop(peer, None)
        if node_id is None:
            return
        index = self._place(node_id)
        bucket, replacements = self._buckets[index], self._waiting[index]
        if bucket.pop(node_id, None) is None:
            return
        while replacements:
            newest, other = replacements.popitem()
            if other not in self._ids:
                bucket[newest] = other
                self._ids[other] = newest
                return

    def nearest(self, key: bytes, count: int, asker: str = "") -> list[Neighbour]:
        """Return the known nodes nearest to a key, nearest first, without the asker."""
        place = self._place(key)
        # Any node of one tier is nearer to the key than any of the next.
        tiers = [self._buckets[place : place + 1], self._buckets[place + 1 :]]
        tiers += [[bucket] for bucket in reversed(self._buckets[:place])]
        nodes: list[Neighbour] = []
        for tier in tiers:
            pairs = [pair for bucket in tier for pair in bucket.items() if pair[1] != asker]
            nodes += sorted(pairs, key=lambda pair: distance(key, pair[0]))
            if len(nodes) >= count:
                break
        return nodes[:count]

    def _may(self, node_id: bytes, peer: str) -> bool:
        index = self._place(node_id)
        if node_id == self.own or self._buckets[index].get(node_id, peer) != peer:
            return False
        current = self._ids.get(peer)
        if current == node_id:
            return True
        if not self._new_ids.take(peer):
            return False
        if current is not None:
            self._buckets[self._place(current)].pop(current, None)
            del self._ids[peer]
        return True

    def _place(self, node_id: bytes) -> int:
        return 8 * calls.NODE_BYTES - distance(self.own, node_id).bit_length()


def distance(one: bytes, other: bytes) -> int:
    """Return Kademlia's distance: the XOR of both ids as a big-endian number."""
    return int.from_bytes(one, "big") ^ int.from_bytes(other, "big")


class RecordShare:
    """The records that this node stores, and the gate for all records."""

    def __init__(self, counters: Counters, peer_limits: PeerLimits) -> None:
        self._serializer = StrictSerializer(calls.Dictionary)
        self.gate = RecordGate(self._serializer, counters)
        self._storage = BoundedStorage(
            calls.Shelf(peer_limits.clock), counters, peer_limits, self.gate.stored
        )

    def record(self, key: str, subkey: bytes, value: bytes, expiry: float) -> DictionaryRecord:
        """Return a record in its wire form."""
        pack = self._serializer.dumps
        return DictionaryRecord(dht_key_of(key), pack(subkey), pack(value), expiry)

    def keep(self, record: DictionaryRecord) -> bool:
        """Store a record, or all valid ones of a dictionary; return whether it succeeded.

        Returns False if nothing is valid; raises ``ValueError`` if it is neither.
        """
        if record.subkey:
            if not self.gate.validate(record):
                return False
            subkey = self._serializer.loads(record.subkey)
            return self._storage.store(record.key, record.value, record.expiration_time, subkey)
        results = [
            self._storage.store(record.key, entry.value, entry.expiration_time, subkey)
            for subkey, entry in self.gate.records(record.key, record.value).items()
        ]
        return bool(results) and all(results)

    def held(self, key: bytes) -> DictionaryRecord | None:
        """Return the packed dictionary under a key, None if there is none."""
        entry = self._storage.get(key)
        if entry is None:
            return None
        value = self._serializer.dumps(entry.value)
        return DictionaryRecord(key, b"", value, entry.expiration_time)

    def held_keys(self) -> list[bytes]:
        return [key for key, _ in self._storage.items()]


MOST_WORKING = 256  # maximum concurrent pings and record transfers to new nodes
CONCURRENT = HandlerLimits(MESSAGE_LIMIT, concurrent=128, concurrent_per_peer=32)

Call = Callable[[str, str, bytes], Awaitable[bytes]]
"""(peer id, name, request) -> response; raises ``TransportError``."""

Take = Callable[[Result], None]  # raises ``ValueError`` to reject


class Libp2pDHT:
    """This node's part of the DHT, and its client for the other nodes.

    ``call`` calls a peer, and is replaced when a new node replaces a dead one. A ``client`` only
    sends requests, because no peer can dial it. ``node_id`` is drawn by default.
    """

    def __init__(
        self,
        peer_id: str,
        call: Call,
        counters: Counters,
        peer_limits: PeerLimits,
        node_id: bytes | None = None,
    ) -> None:
        self.call = call
        self.client = False
        self.share = RecordShare(counters, peer_limits)
        self.table = RoutingTable(node_id or token_bytes(calls.NODE_BYTES), peer_limits, counters)
        self.tasks = BackgroundTasks()
        self._peer_id = peer_id
        self._counters = counters
        self._clock = peer_limits.clock

    @property
    def node_id(self) -> bytes:
        return self.table.own

    async def answer(self, name: str, peer: str, request: bytes) -> bytes:
        """Return the response to a call; raises ``ValueError`` if it is malformed."""
        fields = decode(request)
        if name == PING:
            return await self._answer_ping(peer, fields)
        return (self._answer_find if name == FIND else self._answer_store)(peer, fields)

    async def ping(self, peer: str) -> tuple[bytes | None, float]:
        """Note a node and return its id, None for a client, and its clock.

        Raises ``TransportError`` or ``ValueError``.
        """
        fields = decode(await self.call(peer, PING, encode({2: calls.pack_node(self._name)})))
        node_id = calls.node_of(fields, 2)
        self._met(node_id, peer)
        clock = fields.get(4, [0.0])[-1]
        if not isinstance(clock, float):
            raise ValueError("its clock is not a double")
        return node_id, clock

    async def find_neighbours(self) -> None:
        await self._search(self.table.own)

    async def read(self, key: str) -> dict[bytes, bytes]:
        key_id = dht_key_of(key)
        merged = calls.Dictionary()

        def take(result: Result) -> None:
            if result.value is not None:
                for subkey, entry in self.share.gate.records(key_id, result.value).items():
                    merged.store(subkey, entry.value, entry.expiration_time)

        take(self._result(key_id, ""))
        await self._search(key_id, take)
        return {subkey: self.share.gate.value(entry.value) for subkey, entry in merged.items()}

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        record = self.share.record(key, subkey, value, expiry)
        key_id = record.key
        nearest = await self._search(key_id)
        if not self.client:
            nearest.append((self.table.own, self._peer_id))
        nearest.sort(key=lambda pair: distance(key_id, pair[0]))
        return await placed(nearest, lambda peer: self._put(peer, [record]))

    @property
    def _name(self) -> bytes:
        """Return the id that others may remember; empty if this node is a client."""
        return b"" if self.client else self.table.own

    async def _put(self, peer: str, records: list[DictionaryRecord]) -> list[bool] | None:
        if peer == self._peer_id:
            return [self.share.keep(record) for record in records]
        fields = await self._ask(peer, STORE, calls.pack_store(records, self._name))
        if fields is None:
            return None
        try:
            return calls.open_stored(fields)
        except ValueError as error:
            self._refused(peer, error)
            return None

    async def _search(self, key: bytes, take: Take = lambda result: None) -> list[Neighbour]:
        """Return nodes near a key that answered; ``take`` raises ``ValueError`` to reject."""
        local, ask = (self.table.own, self._peer_id), partial(self._find, key, take)
        search = Search(local, partial(distance, key), ask, self._counters)
        return await search.nearest(self.table.nearest(key, BUCKET))

    async def _find(self, key: bytes, take: Take, peer: str) -> Answer[bytes, str] | None:
        """Return a node's own id and its neighbors; None without a valid answer."""
        fields = await self._ask(peer, FIND, encode({2: [key], 3: calls.pack_node(self._name)}))
        if fields is None:
            return None
        try:
            (result,) = calls.open_results(fields, 1, BUCKET + 1)
            take(result)
        except ValueError as error:
            self._refused(peer, error)
            return None
        return calls.node_of(fields, 3), result.nearest

    def _refused(self, peer: str, error: ValueError) -> None:
        self._counters.add("dht_answers_refused")
        logger.debug("peer %s: %s", peer, error)

    async def _ask(self, peer: str, name: str, request: bytes) -> Fields | None:
        try:
            fields = decode(await self.call(peer, name, request))
            self._met(calls.node_of(fields, 3), peer)
        except (TransportError, ValueError) as error:
            logger.debug("%s of peer %s: %s", name, peer, error)
            self.table.forget(peer)
            return None
        return fields

    async def _answer_ping(self, peer: str, fields: Fields) -> bytes:
        node_id = calls.node_of(fields, 2)
        validate = varints(fields.get(3, [0]))[-1:] == [1]
        available = bool(validate and node_id) and await self._answers(peer, node_id)
        if available or not validate:
            self._met(node_id, peer)
        return encode({2: calls.pack_node(self._name), 4: self._clock.time(), 5: available})

    def _answer_find(self, peer: str, fields: Fields) -> bytes:
        keys = several(fields, 2)
        if len(keys) > calls.MOST_KEYS or any(len(key) != calls.NODE_BYTES for key in keys):
            raise ValueError("too many keys, or of another length")
        self._met(calls.node_of(fields, 3), peer)
        results: list[Result] = []
        size = 0
        for key in keys:
            results.append(self._result(key, peer))
            size += len(results[-1].value or b"")
            if size > MESSAGE_LIMIT:
                raise ValueError("more records than one message holds")
        return calls.pack_results(results, self._name)

    def _answer_store(self, peer: str, fields: Fields) -> bytes:
        records = calls.open_store(fields)
        self._met(calls.node_of(fields, 7), peer)
        return calls.pack_stored([self.share.keep(record) for record in records], self._name)

    def _result(self, key: bytes, asker: str) -> Result:
        nearest = tuple(self.table.nearest(key, BUCKET, asker))
        record = self.share.held(key)
        value, expiration = (record.value, record.expiration_time) if record else (None, 0.0)
        return Result(value, expiration, nearest)

    def _met(self, node_id: bytes | None, peer: str) -> None:
        """Note a node; a new one receives the records that it should store."""
        if node_id is None or peer == self._peer_id:
            return
        new = node_id not in self.table
        oldest = self.table.seen(node_id, peer)
        # Only for a node in the table: transfers are slow, and others could call again and again.
        if new and node_id in self.table:
            for record in self._due_to(node_id, peer):
                self._spawn(self._hand_over(peer, record))
        if oldest is not None:
            self._spawn(self._forget_if_silent(oldest[1]))

    def _due_to(self, node_id: bytes, peer: str) -> list[DictionaryRecord]:
        """Return the records that a new node should store and this node is nearest to."""
        records = []
        for key in self.share.held_keys():
            distances = [distance(key, node) for node, _ in self.table.nearest(key, REPLICAS, peer)]
            is_nearest = not distances or distance(key, self.table.own) < distances[0]
            is_replica = len(distances) < REPLICAS or distance(key, node_id) < distances[-1]
            if is_nearest and is_replica and (record := self.share.held(key)) is not None:
                records.append(record)
        return records

    async def _hand_over(self, peer: str, record: DictionaryRecord) -> None:
        if await self._put(peer, [record]) is None:
            self._counters.add("records_not_handed_over")

    async def _forget_if_silent(self, peer: str) -> None:
        if not await self._answers(peer):
            self.table.forget(peer)

    async def _answers(self, peer: str, node_id: bytes | None = None) -> bool:
        """Return whether a peer answers a ping, with that node id if one is given."""
        try:
            actual_id, _ = await self.ping(peer)
        except (TransportError, ValueError):
            return False
        return node_id in (None, actual_id)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if len(self.tasks) < MOST_WORKING:
            self.tasks.spawn(work)
        else:
            work.close()
            self._counters.add("dht_work_dropped")


async def _answer_call(
    table: Libp2pDHT, budget: CallBudget, name: str, peer: str, data: bytes
) -> bytes:
    try:
        call_id, request = calls.open_call(data)
    except (ValueError, OverflowError) as error:
        raise Refusal("malformed") from error
    try:
        handle = partial(table.answer, name, peer, request)
        return calls.pack_answer(call_id, await budget.serve(peer, len(data), handle))
    except (ValueError, OverflowError, PermissionError) as error:
        return calls.pack_error(call_id, str(error))


def served_calls(
    table: Libp2pDHT, counters: Counters, peer_limits: PeerLimits, budget: CallBudget
) -> dict[str, StreamHandler]:
    """Return a stream handler for each call name; all share ``budget``."""

    def handler(name: str) -> StreamHandler:
        service = Service(
            name, partial(_answer_call, table, budget, name), CONCURRENT, counters, peer_limits
        )

        async def on_stream(peer: str, reader: StreamReader, writer: StreamWriter) -> None:
            try:
                await serve(reader, writer, service, peer, LENGTH_VARINT)
            except Refusal as refusal:
                logger.debug("%s from %s refused: %s", name, peer, refusal.reason)
            except (TransportError, ValueError) as error:
                counters.add("dht_calls_lost")
                logger.debug("%s of %s: %s", name, peer, error)
            finally:
                writer.close()

        return on_stream

    return {name: handler(name) for name in (PING, FIND, STORE)}
