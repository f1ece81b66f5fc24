"""The transport inside one process: a small DHT and streams on a given clock.

Each peer stores only the records that its own validator passes. One random generator draws
everything, so a run on a :class:`experiments.virtual_clock.VirtualClock` is a function of its seed.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

from protocol.announcement import dht_key_of
from swarm.common.clock import Clock, within
from swarm.common.counters import Counters
from swarm.transport.request_limits import Services
from swarm.transport.transport import (
    HEADER_SECONDS,
    MINIMUM_RATE,
    OPENING_SECONDS,
    RATE_GRACE_SECONDS,
    DeadlineExceeded,
    PeerUnreachable,
    Reach,
    RecordView,
    Refusal,
    Refused,
    ResponseTooLarge,
    TooSlow,
    check_size,
)

REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Conditions:
    """Latency and loss of the network."""

    latency: float = 0.0  # mean one-way seconds; delays are uniform in 0.5 to 1.5 times this
    loss: float = 0.0  # probability per request, and per record to or from one replica


class MemoryNetwork:
    """All peers of one process, the ring that holds the records, and the conditions."""

    def __init__(self, clock: Clock, seed: int = 0, conditions: Conditions | None = None) -> None:
        self.clock = clock
        self.conditions = conditions or Conditions()
        self.members: dict[str, MemoryTransport] = {}
        self.upload_rate: dict[str, float] = {}
        self._random = random.Random(seed)
        self._ring: list[tuple[bytes, str]] = []
        self._side: dict[str, int] = {}

    def add(self, member: MemoryTransport) -> None:
        """Add a started transport."""
        self.members[member.peer_id] = member
        self._ring = sorted((sha256(peer.encode()).digest(), peer) for peer in self.members)

    def remove(self, member: MemoryTransport) -> None:
        """Remove a transport and the records that it holds."""
        self.members.pop(member.peer_id, None)
        self._ring = [place for place in self._ring if place[1] != member.peer_id]

    def partition(self, *sides: Iterable[str]) -> None:
        """Split the network; peers on no side form one more. Without sides, heal it."""
        self._side = {peer: number for number, side in enumerate(sides, 1) for peer in side}

    def reachable(self, source: str, target: str) -> bool:
        """Return whether ``target`` runs and is on the same side as ``source``."""
        return target in self.members and self._side.get(source) == self._side.get(target)

    def replicas(self, source: str, key: bytes) -> list[MemoryTransport]:
        """Return the first reachable peers after the key's place on the ring."""
        start = bisect_left(self._ring, (key, ""))
        around = self._ring[start:] + self._ring[:start]
        near = (self.members[peer] for _, peer in around if self.reachable(source, peer))
        return list(islice(near, REPLICAS))

    def lost(self) -> bool:
        """Draw whether one message is lost."""
        return self.conditions.loss > 0 and self._random.random() < self.conditions.loss

    def takes_time(self, source: str) -> bool:
        """Return whether an answer of ``source`` takes time."""
        return self.conditions.latency > 0 or source in self.upload_rate

    async def travel(self) -> None:
        """Wait for the latency of one way."""
        if self.conditions.latency > 0:
            await self.clock.sleep(self.conditions.latency * self._random.uniform(0.5, 1.5))


class MemoryTransport(Services):
    """:class:`swarm.transport.transport.Transport` inside a :class:`MemoryNetwork`."""

    def __init__(
        self, network: MemoryNetwork, peer_id: str, counters: Counters | None = None
    ) -> None:
        super().__init__(network.clock, counters)
        self.peer_id = peer_id
        self._network = network
        self._records: dict[bytes, dict[bytes, RecordView]] = {}

    async def start(self) -> None:
        self._network.add(self)

    async def close(self) -> None:
        self._network.remove(self)

    def addresses(self) -> tuple[str, ...]:
        return (f"/memory/p2p/{self.peer_id}",)

    async def connect(self, address: str) -> str:
        peer = address.rpartition("/p2p/")[2]
        await self._network.travel()
        if not self._network.reachable(self.peer_id, peer):
            raise PeerUnreachable(f"no peer answers at {address}")
        return peer

    def peers(self) -> tuple[str, ...]:
        reachable = self._network.reachable
        everybody = sorted(self._network.members)
        return tuple(p for p in everybody if p != self.peer_id and reachable(self.peer_id, p))

    def reach(self) -> Reach:
        return Reach("direct", "inside of one process", links=dict.fromkeys(self.peers(), "direct"))

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        check_size(value)
        await self._network.travel()
        record = RecordView(dht_key_of(key), subkey, value, expiry)
        replicas = self._network.replicas(self.peer_id, record.key)
        taken = [replica.take(record) for replica in replicas if not self._network.lost()]
        return any(taken)

    async def read(self, key: str) -> dict[bytes, bytes]:
        await self._network.travel()
        hashed = dht_key_of(key)
        latest: dict[bytes, RecordView] = {}
        for replica in self._network.replicas(self.peer_id, hashed):
            if self._network.lost():
                continue
            for record in replica.records(hashed):
                known = latest.get(record.subkey)
                if (known is None or known.expiry < record.expiry) and self._passes(record):
                    latest[record.subkey] = record
        return {subkey: record.value for subkey, record in latest.items()}

    def take(self, record: RecordView) -> bool:
        """Store a record for others, as a DHT node does."""
        if record.expiry <= self._network.clock.time() or not self._passes(record):
            return False
        held = self._records.setdefault(record.key, {})
        known = held.get(record.subkey)
        if known is not None and known.expiry >= record.expiry:
            return False
        held[record.subkey] = record
        self._watch.stored(record.key, record.value)
        return True

    def records(self, key: bytes) -> list[RecordView]:
        """Return the unexpired records under a hashed key."""
        now = self._network.clock.time()
        for name, held in list(self._records.items()):
            if all(record.expiry <= now for record in held.values()):
                del self._records[name]
        return [record for record in self._records.get(key, {}).values() if record.expiry > now]

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
        self.bytes_out += len(payload)
        clock = self._network.clock
        began = clock.time()
        try:
            header = min(deadline, OPENING_SECONDS + HEADER_SECONDS)
            answer = await within(clock, header, self._ask(peer, protocol, payload, limit))
            receiving = self._receive(peer, answer, minimum_rate)
            if self._network.takes_time(peer):
                await within(clock, began + deadline - clock.time(), receiving)
            else:
                await receiving
        except TimeoutError as error:
            raise DeadlineExceeded(f"peer {peer} did not answer in time") from error
        self.bytes_in += len(answer)
        return answer

    async def serve(self, peer: str, protocol: str, payload: bytes) -> bytes:
        """Answer a request of ``peer``; raise ``Refusal`` or ``PeerUnreachable``."""
        service = self._services.get(protocol)
        if service is None:
            raise PeerUnreachable(f"peer {self.peer_id} does not speak {protocol}")
        with service.admit(peer) as place:
            service.check_size(len(payload))
            place.waiting = False
            self.bytes_in += len(payload)
            answer = await service.answer(peer, payload)
        self.bytes_out += len(answer)
        return answer

    async def _ask(self, peer: str, protocol: str, payload: bytes, limit: int) -> bytes:
        await self._network.travel()
        if self._network.lost() or not self._network.reachable(self.peer_id, peer):
            raise PeerUnreachable(f"no connection to peer {peer}")
        try:
            answer = await self._network.members[peer].serve(self.peer_id, protocol, payload)
        except Refusal:
            raise Refused(f"peer {peer} gave no answer") from None
        if len(answer) > limit:
            raise ResponseTooLarge(f"peer {peer} declared {len(answer)} bytes, limit {limit}")
        return answer

    async def _receive(self, peer: str, answer: bytes, minimum_rate: float) -> None:
        clock, rate = self._network.clock, self._network.upload_rate.get(peer)
        if rate is not None:
            if rate < minimum_rate and len(answer) / rate > RATE_GRACE_SECONDS:
                await clock.sleep(RATE_GRACE_SECONDS)
                raise TooSlow(f"peer {peer} sends below {minimum_rate:g} bytes per second")
            await clock.sleep(len(answer) / rate)
        await self._network.travel()

    def _passes(self, record: RecordView) -> bool:
        passed = self._check is not None and self._check(record)
        if not passed:
            self._counters.add("records_refused")
        return passed
