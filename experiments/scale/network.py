"""The network of a simulated swarm: who is there, what is lost, and what everything costs."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache

from experiments.scale.clock import SteppedClock
from experiments.scale.table import Shelf, Table, place_of
from experiments.scale.table_cost import CallCost, get_cost, store_cost
from experiments.scale.tally import Kind, Tally
from protocol.announcement import dht_key_of
from protocol.messages import GOSSIP_STREAM, PULL_STREAM
from swarm.common.fair_limits import Standing
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

KIND = {GOSSIP_STREAM: Kind.GOSSIP, PULL_STREAM: Kind.FRAMES}


class SimulatedNetwork:
    """All peers of a simulated swarm.

    Messages arrive at once and in the order they were sent, or not at all.

    Args:
        connections: peers that each is connected with.
        loss: probability that a request, or a record to or from one replica, is lost.

    Attributes:
        routing: bytes of the hash table's searches, which fall to all nodes alike.
        version: of who is there.
        present: everybody, by peer id.
        order: everybody in the order of joining.
    """

    def __init__(self, clock: SteppedClock, seed: int, connections: int, loss: float = 0.0) -> None:
        self.clock = clock
        self.connections = connections
        self.loss = loss
        self.table = Table()
        self.routing = [0.0, 0.0]
        self._reads: Counter[bytes] = Counter()
        self.version = 0
        self.present: dict[str, SimulatedTransport] = {}
        self._at: dict[int, SimulatedTransport] = {}
        self._lots = random.Random(f"loss/{seed}")
        self.order: list[str] = []

    def add(self, peer: SimulatedTransport) -> None:
        """Let a peer take part."""
        self.present[peer.peer_id] = self._at[peer.place] = peer
        self.order.append(peer.peer_id)
        self.table.join(peer.place, peer.side)
        self.version += 1

    def remove(self, peer: SimulatedTransport) -> None:
        """Take a peer away, with its copies of records."""
        if self.present.pop(peer.peer_id, None):
            del self._at[peer.place]
            self.order.remove(peer.peer_id)
            self.table.leave(peer.place, peer.side)
            self.version += 1

    def begin(self, now: float) -> None:
        """Begin an epoch: what was spent before is forgotten, and records that expired."""
        self.clock.move_to(now)
        self.table.forget(now)
        self.routing = [0.0, 0.0]
        self._reads.clear()
        for peer in self.present.values():
            peer.tally.clear()

    def count_read(self, key: bytes) -> None:
        """Note that a key was read."""
        self._reads[key] += 1

    def busiest_key(self) -> tuple[int, int]:
        """Records under the key with most of them, and reads of the key that is read most."""
        return self.table.most(), max(self._reads.values(), default=0)

    def cut(self, apart: Iterable[SimulatedTransport]) -> None:
        """Part the network in two: these peers, and all others."""
        places = set()
        for peer in apart:
            peer.side = 1
            places.add(peer.place)
        self.table.cut(places)
        self.version += 1

    def heal(self) -> None:
        """Make it one network again."""
        for peer in self.present.values():
            peer.side = 0
        self.table.heal()
        self.version += 1

    def lost(self) -> bool:
        """Draw whether one message is lost."""
        return self.loss > 0.0 and self._lots.random() < self.loss

    def reached(self, places: Iterable[int]) -> list[int]:
        """Of these, the places that one call reaches."""
        return [place for place in places if not self.lost()]

    def at(self, place: int) -> SimulatedTransport:
        """The peer that stands there."""
        return self._at[place]


class SimulatedTransport:
    """:class:`swarm.transport.transport.Transport` inside a :class:`SimulatedNetwork`.

    A request is answered at once; the bounds on how many are served at a time never bite here.

    Attributes:
        tally: what this node spends.
        place: its id in the hash table.
        side: on which it is where the network is cut.
    """

    def __init__(self, network: SimulatedNetwork, peer_id: str) -> None:
        self.peer_id = peer_id
        self.bytes_in = 0
        self.bytes_out = 0
        self.tally = Tally()
        self.place = place_of(peer_id)
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

    def use_standing(self, standing: Standing) -> None:
        """Nothing here is shared out, so nobody's standing is asked for."""

    def watch(self, keys: Collection[str], heard: Callable[[bytes], None]) -> None:
        """Nobody is told: a simulated member looks when it is its turn, and not before."""

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        check_size(value)
        network, hashed = self._network, dht_key_of(key)
        shelf = network.table.shelf(self.side, hashed, network.clock.time())
        nodes = network.table.size(self.side)
        self._pay(_store_cost(nodes, len(value)), _store_cost(nodes, 0), shelf)
        reached = network.reached(shelf.places)
        # The copies are the same everywhere, and so is what a node's own rule says to them.
        record = RecordView(hashed, subkey, value, expiry)
        if not reached or not network.at(reached[0]).passes(record):
            return False
        return network.table.put(shelf, subkey, value, expiry, frozenset(reached))

    async def read(self, key: str) -> dict[bytes, bytes]:
        """What is there, which the caller leaves as it is."""
        network, hashed = self._network, _hashed(key)
        shelf = network.table.shelf(self.side, hashed, network.clock.time())
        nodes = network.table.size(self.side)
        network.count_read(hashed)
        self._pay(_get_cost(nodes, shelf.size), _get_cost(nodes, 0), shelf)
        if not network.loss:
            return shelf.found
        return network.table.heard(shelf, network.reached(shelf.places))

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
        self.tally.rpcs[kind] += 1
        self.tally.asked[kind] += len(payload)
        asked = self._reachable(peer)
        if asked is None or self._network.lost():
            raise PeerUnreachable(f"no connection to peer {peer}")
        answer = await asked.serve(self.peer_id, protocol, payload)
        if len(answer) > limit:
            raise ResponseTooLarge(f"peer {peer} declared {len(answer)} bytes, limit {limit}")
        self.bytes_in += len(answer)
        self.tally.asked[kind] += len(answer)
        return answer

    def handle(self, protocol: str, handler: Handler, limits: HandlerLimits) -> None:
        self._handlers[protocol] = handler

    async def serve(self, peer: str, protocol: str, payload: bytes) -> bytes:
        """Answer a request of ``peer``.

        Raises:
            Refused: this node will not.
        """
        self.bytes_in += len(payload)
        try:
            answer = await self._handlers[protocol](peer, payload)
        except Refusal:
            raise Refused(f"peer {self.peer_id} gave no answer") from None
        self.bytes_out += len(answer)
        self.tally.served += len(payload) + len(answer)
        return answer

    def passes(self, record: RecordView) -> bool:
        """Whether this node would hold a record for others."""
        return self._check(record)

    def _reachable(self, peer: str) -> SimulatedTransport | None:
        found = self._network.present.get(peer)
        return found if found is not None and found.side == self.side else None

    def _meet(self) -> None:
        """Connect with others, drawn from all that can be reached, until there are enough."""
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

    def _pay(self, cost: CallCost, search: CallCost, shelf: Shelf) -> None:
        """Put a call of the hash table on the books of all that take part in it."""
        network, tally = self._network, self.tally
        whole, routed = cost.bytes_out + cost.bytes_in, search.bytes_out + search.bytes_in
        tally.rpcs[Kind.TABLE] += cost.rpcs
        tally.asked[Kind.TABLE] += whole
        network.routing[self.side] += routed
        if whole > routed and shelf.places:
            part = (whole - routed) / len(shelf.places)
            for place in shelf.places:
                network.at(place).tally.served += part


def _refuse(record: RecordView) -> bool:
    """Before there is a rule, no record passes."""
    return False


_hashed = lru_cache(1 << 12)(dht_key_of)
_get_cost = lru_cache(1 << 14)(get_cost)
_store_cost = lru_cache(1 << 14)(store_cost)
