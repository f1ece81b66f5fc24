"""Simulated network: clock, peers, lost messages, and the traffic of each node."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from experiments.scale.dht import CallCost, KeyRecords, RecordTable, dht_id_of, get_cost, store_cost
from protocol.announcement import dht_key_of
from protocol.messages import GOSSIP_STREAM, PULL_STREAM
from swarm.common.fair_limits import ReputationOf
from swarm.transport.transport import (
    MINIMUM_RATE,
    Handler,
    HandlerLimits,
    PeerUnreachable,
    Reach,
    RecordCheck,
    RecordView,
    Refusal,
    Refused,
    ResponseTooLarge,
    check_size,
)


class SteppedClock:
    """:class:`swarm.common.clock.Clock` in unix seconds that its owner moves."""

    def __init__(self, start: float) -> None:
        self._now = start

    def move_to(self, now: float) -> None:
        """Set the clock to ``now``; it never goes back."""
        self._now = max(self._now, now)

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return for 0 seconds; raise RuntimeError otherwise, because members take turns."""
        if seconds > 0:
            raise RuntimeError(f"a simulated clock cannot wait {seconds:g} s")


class TrafficKind(IntEnum):
    """Purpose of traffic."""

    TABLE = 0
    GOSSIP = 1
    FRAMES = 2


@dataclass(slots=True)
class Traffic:
    """Traffic of one node since the last :meth:`clear`."""

    # Requests of this node, and bytes of these requests and their answers, by kind.
    rpcs: list[float] = field(default_factory=lambda: [0.0] * len(TrafficKind))
    request_bytes: list[float] = field(default_factory=lambda: [0.0] * len(TrafficKind))
    served_bytes: float = 0.0  # bytes of requests to this node and of its answers

    @property
    def bytes(self) -> float:
        return sum(self.request_bytes) + self.served_bytes

    def clear(self) -> None:
        self.rpcs[:] = self.request_bytes[:] = [0.0] * len(TrafficKind)
        self.served_bytes = 0.0


KIND = {GOSSIP_STREAM: TrafficKind.GOSSIP, PULL_STREAM: TrafficKind.FRAMES}


class ScaleNetwork:
    """Peers of a simulated swarm. Messages arrive immediately and in order, or are lost.

    Args:
        connections: connections per peer.
        loss: probability that a request, or a record to or from one replica, is lost.

    Attributes:
        routing: bytes of DHT searches by side; all nodes share them equally.
        version: version of the membership.
        present: peers by id.
        order: peer ids in the order of joining.
    """

    def __init__(self, clock: SteppedClock, seed: int, connections: int, loss: float = 0.0) -> None:
        self.clock = clock
        self.connections = connections
        self.loss = loss
        self.table = RecordTable()
        self.routing = [0.0, 0.0]
        self._reads: Counter[bytes] = Counter()
        self.version = 0
        self.present: dict[str, ScaleTransport] = {}
        self._at: dict[int, ScaleTransport] = {}
        self._lots = random.Random(f"loss/{seed}")
        self.order: list[str] = []

    def add(self, peer: ScaleTransport) -> None:
        self.present[peer.peer_id] = self._at[peer.dht_id] = peer
        self.order.append(peer.peer_id)
        self.table.join(peer.dht_id, peer.side)
        self.version += 1

    def remove(self, peer: ScaleTransport) -> None:
        if self.present.pop(peer.peer_id, None):
            del self._at[peer.dht_id]
            self.order.remove(peer.peer_id)
            self.table.leave(peer.dht_id, peer.side)
            self.version += 1

    def begin(self, now: float) -> None:
        """Begin a time slot: reset the traffic and drop expired records."""
        self.clock.move_to(now)
        self.table.expire(now)
        self.routing = [0.0, 0.0]
        self._reads.clear()
        for peer in self.present.values():
            peer.traffic.clear()

    def count_read(self, key: bytes) -> None:
        self._reads[key] += 1

    def busiest_key(self) -> tuple[int, int]:
        """Return the maximum records under a key, and the maximum reads of a key."""
        return self.table.max_records(), max(self._reads.values(), default=0)

    def cut(self, apart: Iterable[ScaleTransport]) -> None:
        """Split the network: these peers on side 1, all others on side 0."""
        ids = set()
        for peer in apart:
            peer.side = 1
            ids.add(peer.dht_id)
        self.table.cut(ids)
        self.version += 1

    def heal(self) -> None:
        for peer in self.present.values():
            peer.side = 0
        self.table.heal()
        self.version += 1

    def lost(self) -> bool:
        return self.loss > 0.0 and self._lots.random() < self.loss

    def reached(self, ids: Iterable[int]) -> list[int]:
        return [dht_id for dht_id in ids if not self.lost()]

    def at(self, dht_id: int) -> ScaleTransport:
        return self._at[dht_id]


class ScaleTransport:
    """:class:`swarm.transport.transport.Transport` inside of a :class:`ScaleNetwork`.

    Requests are answered immediately, so limits on concurrent requests have no effect.

    Attributes:
        traffic: traffic of this node.
        dht_id: id in the DHT.
        side: side of a split network.
    """

    def __init__(self, network: ScaleNetwork, peer_id: str) -> None:
        self.peer_id = peer_id
        self.bytes_in = 0
        self.bytes_out = 0
        self.traffic = Traffic()
        self.dht_id = dht_id_of(peer_id)
        self.side = 0
        self._network = network
        self._handlers: dict[str, Handler] = {}
        self._check: RecordCheck = _refuse
        self._connected: list[str] = []
        self._peers: tuple[str, ...] = ()
        self._version = -1
        self._draw = random.Random(f"connections/{peer_id}")

    async def start(self) -> None:
        self._network.add(self)

    async def close(self) -> None:
        self._network.remove(self)

    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/p2p/{self.peer_id}",)

    async def connect(self, address: str) -> str:
        peer = address.rpartition("/p2p/")[2]
        if self._reachable(peer) is None:
            raise PeerUnreachable(f"no peer answers at {address}")
        return peer

    def peers(self) -> tuple[str, ...]:
        if self._version != self._network.version:
            self._version = self._network.version
            self._connected = [p for p in self._connected if self._reachable(p)]
            self._meet()
            self._peers = tuple(sorted(self._connected))
        return self._peers

    def reach(self) -> Reach:
        return Reach("direct", "inside of one process", links=dict.fromkeys(self.peers(), "direct"))

    def use_validator(self, check: RecordCheck) -> None:
        self._check = check

    def use_reputation(self, reputation: ReputationOf) -> None:
        """Do nothing: no resource is shared here."""

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        """Do nothing: a simulated member looks at records in its turn only."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        check_size(value)
        network, hashed = self._network, dht_key_of(key)
        records = network.table.records(self.side, hashed, network.clock.time())
        nodes = network.table.size(self.side)
        self._pay(_store_cost(nodes, len(value)), _store_cost(nodes, 0), records)
        reached = network.reached(records.ids)
        # All copies are equal, so one node's check stands for all.
        record = RecordView(hashed, subkey, value, expiry)
        if not reached or not network.at(reached[0]).passes(record):
            return False
        return network.table.put(records, subkey, value, expiry, frozenset(reached))

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Return the records under a key; the caller must not change them."""
        network, hashed = self._network, _hashed(key)
        records = network.table.records(self.side, hashed, network.clock.time())
        nodes = network.table.size(self.side)
        network.count_read(hashed)
        self._pay(_get_cost(nodes, records.size), _get_cost(nodes, 0), records)
        if not network.loss:
            return records.found
        return network.table.values_at(records, network.reached(records.ids))

    async def request(
        self,
        peer: str,
        protocol: str,
        payload: bytes,
        *,
        limit: int,
        deadline: float,
        minimum_rate: float = MINIMUM_RATE,
    ) -> bytes:
        kind = KIND[protocol]
        self.bytes_out += len(payload)
        self.traffic.rpcs[kind] += 1
        self.traffic.request_bytes[kind] += len(payload)
        asked = self._reachable(peer)
        if asked is None or self._network.lost():
            raise PeerUnreachable(f"no connection to peer {peer}")
        answer = await asked.serve(self.peer_id, protocol, payload)
        if len(answer) > limit:
            raise ResponseTooLarge(f"peer {peer} declared {len(answer)} bytes, limit {limit}")
        self.bytes_in += len(answer)
        self.traffic.request_bytes[kind] += len(answer)
        return answer

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        self._handlers[protocol] = handler

    async def serve(self, peer: str, protocol: str, payload: bytes) -> bytes:
        """Answer a request of ``peer``; raise Refused if the handler refuses."""
        self.bytes_in += len(payload)
        try:
            answer = await self._handlers[protocol](peer, payload)
        except Refusal:
            raise Refused(f"peer {self.peer_id} gave no answer") from None
        self.bytes_out += len(answer)
        self.traffic.served_bytes += len(payload) + len(answer)
        return answer

    def passes(self, record: RecordView) -> bool:
        """Report whether this node would hold a record for others."""
        return self._check(record)

    def _reachable(self, peer: str) -> ScaleTransport | None:
        found = self._network.present.get(peer)
        return found if found is not None and found.side == self.side else None

    def _meet(self) -> None:
        """Connect with random reachable peers until there are enough connections."""
        others = self._network.order
        if len(others) <= self._network.connections + 1:
            self._connected = [p for p in others if p != self.peer_id and self._reachable(p)]
            return
        known = {self.peer_id, *self._connected}
        for _ in range(4 * self._network.connections):
            if len(self._connected) >= self._network.connections:
                return
            peer = others[self._draw.randrange(len(others))]
            if peer not in known and self._reachable(peer):
                known.add(peer)
                self._connected.append(peer)

    def _pay(self, cost: CallCost, search: CallCost, records: KeyRecords) -> None:
        """Add the cost of a DHT call to the traffic of all participants."""
        network, traffic = self._network, self.traffic
        whole, routed = cost.bytes_out + cost.bytes_in, search.bytes_out + search.bytes_in
        traffic.rpcs[TrafficKind.TABLE] += cost.rpcs
        traffic.request_bytes[TrafficKind.TABLE] += whole
        network.routing[self.side] += routed
        if whole > routed and records.ids:
            part = (whole - routed) / len(records.ids)
            for dht_id in records.ids:
                network.at(dht_id).traffic.served_bytes += part


def _refuse(record: RecordView) -> bool:
    return False


_hashed = lru_cache(1 << 12)(dht_key_of)
_get_cost = lru_cache(1 << 14)(get_cost)
_store_cost = lru_cache(1 << 14)(store_cost)
