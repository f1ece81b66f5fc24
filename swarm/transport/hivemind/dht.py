"""Guards for hivemind's ``DHTNode``: searches, routing, addresses, storage bounds.

hivemind's own search continues while it receives nearer ids, reserves places among the nearest
for nodes that never answer, and loses its results on timeout. This file works on the objects that
:mod:`swarm.transport.hivemind.node` passes in and imports nothing from hivemind.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from secrets import token_bytes
from types import SimpleNamespace
from typing import Any

from protocol.announcement import dht_key_of
from protocol.identity import decode_base58
from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot, rank_of
from swarm.transport.records import MAX_SUBKEYS, DictionaryRecord, RecordGate
from swarm.transport.request_limits import PeerLimits
from swarm.transport.search import BUCKET, Answer, Search, placed
from swarm.transport.transport import is_relayed

logger = logging.getLogger(__name__)

NODE_BYTES = 20


class HivemindDHT:
    """One node's DHT access: hivemind's ``DHTNode``, with records checked by ``gate``.

    ``messages`` is hivemind's module ``dht_pb2``, ``dictionary`` its ``DictionaryDHTValue``.
    """

    def __init__(
        self, dht: Any, messages: Any, dictionary: type[Any], gate: RecordGate, counters: Counters
    ) -> None:
        self._dht = dht
        self._protocol = dht.protocol
        self._messages = messages
        self._dictionary = dictionary
        self._gate = gate
        self._counters = counters

    @property
    def node_id(self) -> bytes:
        return bytes(self._dht.node_id.to_bytes())

    async def find_neighbours(self) -> None:
        await self._nearest(self._dht.node_id)

    async def read(self, key: str) -> dict[bytes, bytes]:
        key_id = self._node_of(dht_key_of(key))
        merged = self._dictionary()

        def take(records: Any) -> None:
            for subkey, (value, expiry) in records.items():
                merged.store(subkey, value, expiry)

        if (local := self._protocol.storage.get(key_id)) is not None:
            take(local.value)
        await self._nearest(key_id, take)
        return {subkey: self._gate.value(entry.value) for subkey, entry in merged.items()}

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        key_id = self._node_of(dht_key_of(key))
        dumps = self._protocol.serializer.dumps
        encoded = dumps(value)
        nearest = await self._nearest(key_id)
        if not self._protocol.client_mode:
            nearest.append((self._dht.node_id, self._dht.peer_id))
        nearest.sort(key=lambda pair: int(key_id.xor_distance(pair[0])))

        async def put(peer: Any) -> Iterable[bool] | None:
            if peer != self._dht.peer_id:
                stored: Iterable[bool] | None = await self._protocol.call_store(
                    peer, [key_id], [encoded], [expiry], [subkey]
                )
                return stored
            record = DictionaryRecord(key_id.to_bytes(), dumps(subkey), encoded, expiry)
            storage = self._protocol.storage
            return [self._gate.validate(record) and storage.store(key_id, encoded, expiry, subkey)]

        return await placed(nearest, put)

    def _node_of(self, raw: bytes) -> Any:
        if len(raw) != NODE_BYTES:
            raise ValueError(f"a node id of {len(raw)} bytes")
        return type(self._dht.node_id).from_bytes(raw)

    async def _nearest(
        self, key_id: Any, take: Callable[[Any], None] = lambda records: None
    ) -> list[tuple[Any, Any]]:
        # ``take`` receives the records of each answer.
        local, ask = (self._dht.node_id, self._dht.peer_id), partial(self._find, key_id, take)
        search = Search(local, key_id.xor_distance, ask, self._counters)
        table = self._protocol.routing_table
        return await search.nearest(table.get_nearest_neighbors(key_id, BUCKET, exclude=local[0]))

    async def _find(
        self, key_id: Any, take: Callable[[Any], None], peer: Any
    ) -> Answer[Any, Any] | None:
        # Returns the peer's node id (None for a client) and its neighbors; None without a valid
        # answer.
        protocol, node = self._protocol, None
        request = self._messages.FindRequest(keys=[key_id.to_bytes()], peer=protocol.node_info)
        try:
            async with protocol.rpc_semaphore:
                stub = protocol.get_stub(peer)
                response = await stub.rpc_find(request, timeout=protocol.wait_timeout)
        except Exception as error:  # noqa: BLE001 - of hivemind or the peer; it gave no answer
            logger.debug("peer %s does not answer a search: %r", peer, error)
            await protocol.update_routing_table(None, peer, responded=False)
            return None
        try:
            (result,) = response.results
            neighbors = self._named(result)
            if result.type == self._messages.FOUND_DICTIONARY:
                take(self._gate.records(key_id.to_bytes(), result.value))
            if response.peer.node_id:
                node = self._node_of(response.peer.node_id)
                await protocol.update_routing_table(node, peer, responded=True)
        except (ValueError, AssertionError) as error:
            self._counters.add("dht_answers_refused")
            logger.debug("peer %s answers a search with an invalid message: %r", peer, error)
            return None
        return node, neighbors

    def _named(self, result: Any) -> list[tuple[Any, Any]]:
        # Only the first neighbors: parsing an id costs much more than sending one.
        nodes, peers = result.nearest_node_ids, result.nearest_peer_ids
        if excess := max(0, len(nodes) - BUCKET - 1):
            self._counters.add("neighbours_refused", excess)
        pairs = zip(nodes[: BUCKET + 1], peers[: BUCKET + 1], strict=True)
        peer_of = type(self._dht.peer_id)
        return [(self._node_of(node), peer_of(peer)) for node, peer in pairs]


SAME_ID_SECONDS = 10.0  # minimum between two node ids of a peer, which change when it restarts
MAX_PEERS = 4096


def be_client(protocol: Any) -> None:
    """Make a ``DHTProtocol`` answer calls, mainly for its clock, without a node id.

    A node that no peer can dial stores no records for others and is in no routing table.
    """
    protocol.client_mode = True
    protocol.node_info = type(protocol.node_info)()


def drop_odd_ids(protocol: Any) -> None:
    """Make a ``DHTProtocol`` see answers to pings and searches as :func:`with_known_id` does."""
    stub_of = protocol.get_stub

    def seen(call: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def answered(*arguments: Any, **options: Any) -> Any:
            return with_known_id(await call(*arguments, **options))

        return answered

    def get_stub(peer: Any) -> Any:
        stub = stub_of(peer)
        ping, find = seen(stub.rpc_ping), seen(stub.rpc_find)
        return SimpleNamespace(rpc_ping=ping, rpc_find=find, rpc_store=stub.rpc_store)

    protocol.get_stub = get_stub


def with_known_id(message: Any) -> Any:
    """Return a request or answer without a node id of another length: its sender is a client.

    hivemind would pad a shorter id, and fail on a longer one in a background task.
    """
    if len(message.peer.node_id) not in (0, NODE_BYTES):
        message.peer.node_id = b""
    return message


class NewIds:
    """New node ids of peers, which draw one when they restart: at most one in ten seconds each."""

    def __init__(self, clock: Clock) -> None:
        secret = token_bytes(32)
        self._clock = clock
        self._taken: Bounded[str, float] = Bounded(MAX_PEERS, lambda p: lot(secret, p.encode()))

    def take(self, peer: str) -> bool:
        """Count a peer's new id; return False if it took another one too recently."""
        now = self._clock.monotonic()
        taken_at = self._taken.get(peer)
        if taken_at is not None and now < taken_at + SAME_ID_SECONDS:
            return False
        self._taken.put(peer, now)
        return True


class OneIdEach:
    """A filter for ``DHTProtocol.update_routing_table``: one node id per peer."""

    def __init__(self, protocol: Any, counters: Counters, peer_limits: PeerLimits) -> None:
        self._table = protocol.routing_table
        self._update = protocol.update_routing_table
        self._counters = counters
        self._new_ids = NewIds(peer_limits.clock)

    async def update(self, node_id: Any, peer_id: Any, responded: bool = True) -> None:
        """Call hivemind's method for ids that pass."""
        if responded and node_id is not None and not self._may(node_id, peer_id):
            self._counters.add("routing_refused")
            return
        await self._update(node_id, peer_id, responded=responded)
        if node_id is not None:
            self._trim(node_id)

    def _may(self, node_id: Any, peer_id: Any) -> bool:
        if self._table.uid_to_peer_id.get(node_id, peer_id) != peer_id:
            return False
        current = self._table.peer_id_to_uid.get(peer_id)
        if current == node_id:
            return True
        if not self._new_ids.take(str(peer_id)):
            return False
        if current is not None and current in self._table.uid_to_peer_id:
            del self._table[current]
        return True

    def _trim(self, node_id: Any) -> None:
        bucket = self._table.buckets[self._table.get_bucket_index(node_id)]
        while len(bucket.replacement_nodes) > bucket.size:
            del self._table[next(iter(bucket.replacement_nodes))]


P2P = b"\xa5\x03"  # varint code of ``/p2p/``


def packed(address: str, multiaddr: Any) -> Any:
    """Parse a multiaddress, relayed or not; raise ``ValueError`` if it is none.

    ``multiaddr`` is hivemind's class. Inside an address it writes a PeerID as a version 1 CID,
    which go-libp2p, and so the daemon, rejects. This function writes each ``/p2p/`` itself.
    """
    first, *segments = address.split("/p2p/")
    raw = multiaddr(first).to_bytes()
    for segment in segments:
        peer, slash, suffix = segment.partition("/")
        multihash = decode_base58(peer)
        if not multihash or len(multihash) > 127:
            raise ValueError(f"{peer!r} is not a peer id")
        raw += P2P + bytes((len(multihash),)) + multihash
        raw += multiaddr(slash + suffix).to_bytes() if suffix else b""
    return multiaddr(raw)


def own(addresses: Iterable[Any], peer: str) -> tuple[str, ...]:
    """Return the full addresses of a node, relayed ones first.

    The result is empty if the daemon reports none. A node that peers cannot dial hides its public
    addresses and may have no others until a peer relays for it.
    """
    result = (f"{address}/p2p/{peer}" for address in addresses)
    return tuple(sorted(result, key=is_relayed, reverse=True))


def by_peer(peers: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """Return the full addresses of connections by peer id, direct ones first.

    A connection has no address here if hivemind has no name for the transport, which peers choose.
    """
    result: dict[str, list[str]] = {}
    for peer in peers:
        peer_id = str(peer.peer_id)
        texts = filter(None, map(_text, peer.addrs))
        result.setdefault(peer_id, []).extend(f"{address}/p2p/{peer_id}" for address in texts)
    return {peer_id: tuple(sorted(addrs, key=is_relayed)) for peer_id, addrs in result.items()}


def _text(address: Any) -> str:
    # Empty for an address with a part that hivemind does not know.
    try:
        return str(address)
    except ValueError:
        return ""


MAX_KEYS = 256
MAX_RECORDS = 16_384  # over all keys; a record with its author takes about 1.5 KiB
MAX_VERSIONS = 64  # later records that may replace one of an author and time slot


@dataclass(eq=False)
class BoundedStorage:
    """Bounded storage of record dictionaries, independent of arrival order.

    Records of authors with reputation come first; the others have random ranks. A flood of made-up
    authors cannot displace the present ones, and early authors cannot lock out later ones.
    ``stored`` is called with the key and value of every stored record.
    """

    storage: Any
    counters: Counters
    peer_limits: PeerLimits
    stored: Callable[[Any, bytes], None] = lambda key, value: None

    def __post_init__(self) -> None:
        self._reputations = self.peer_limits.reputations
        self._secret = token_bytes(32)
        self._keys: Bounded[Any, Bounded[bytes, None]] = Bounded(MAX_KEYS, self._rank_of_key)
        self._versions: dict[Any, Counter[bytes]] = {}
        self._best: dict[Any, float] = {}

    def store(self, key: Any, value: Any, expiration_time: float, subkey: Any = None) -> bool:
        """Store a record under ``key`` and ``subkey``; refuse it without a subkey."""
        return subkey is not None and self.store_subkey(key, subkey, value, expiration_time)

    def store_subkey(self, key: Any, subkey: Any, value: bytes, expiration_time: float) -> bool:
        """Store a record if it is later than the stored one and wins a place."""
        if len(self.storage) < len(self._keys):  # some have expired
            for expired in [k for k in self._keys if k not in self.storage]:
                self._drop_key(expired)
        entry = self.storage.get(key)
        previous = entry.value.get(subkey) if entry is not None else None
        if previous is not None:
            if previous.expiration_time >= expiration_time:
                return False
            versions = self._versions[key]
            if versions[subkey] >= MAX_VERSIONS:
                return self._full("versions")
            versions[subkey] += 1
        elif not self._draw(key, subkey):
            return False
        if not self.storage.store_subkey(key, subkey, value, expiration_time):
            return False
        self.stored(key, value)
        return True

    def get(self, key: Any) -> Any:
        return self.storage.get(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.storage.items())

    def _draw(self, key: Any, subkey: bytes) -> bool:
        # Returns whether a new record has a place; drops the record that it displaces.
        subkeys = self._open(key, self._reputations.of(subkey))
        if subkeys is None:
            return False
        loser = subkeys.put(subkey, None)
        if loser is not None:
            self._full("subkeys")
            if loser == subkey:
                return False
            self._drop(key, loser)
        return not self._over(key, subkey)

    def _open(self, key: Any, reputation: float) -> Bounded[bytes, None] | None:
        # A key counts as much as the best of its authors.
        subkeys = self._keys.get(key)
        if subkeys is not None and reputation <= self._best[key]:
            return subkeys
        self._best[key] = reputation
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
        # Returns whether there are too many records over all keys and this one had to go.
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
        subkeys, entry = self._keys.get(key), self.storage.get(key)
        if subkeys is not None:
            subkeys.pop(subkey)
        if entry is not None and subkey in entry.value:
            del entry.value[subkey]
        self._versions[key].pop(subkey, None)

    def _drop_key(self, key: Any) -> None:
        self._keys.pop(key)
        self._best.pop(key, None)
        self._versions.pop(key, None)
        del self.storage[key]

    def _rank(self, key: Any, author: bytes) -> float:
        return rank_of(lot(self._secret, str(key).encode(), author), self._reputations.of(author))

    def _rank_of_key(self, key: Any) -> float:
        return rank_of(lot(self._secret, str(key).encode()), self._best.get(key, 0.0))

    def _full(self, bound: str) -> bool:
        self.counters.add("records_over_bound", bound=bound)
        return False
