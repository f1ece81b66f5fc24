"""A node on the libp2p package: connections on trio, the DHT on asyncio.

It implements :class:`swarm.transport.node.TransportNode`. After a failure,
:meth:`Libp2pNode.start` creates another node with the same identity, port, node id and records.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.common.util import BackgroundTasks
from swarm.transport.libp2p.addresses import (
    HostPort,
    announced,
    numeric,
    place_of,
    resolved,
    seen_at,
)
from swarm.transport.libp2p.bridge import Bridge, Pipe, TrioThread
from swarm.transport.libp2p.calls import open_answer, pack_call
from swarm.transport.libp2p.dht import Libp2pDHT, served_calls
from swarm.transport.libp2p.host import Host
from swarm.transport.libp2p.introductions import Introductions
from swarm.transport.libp2p.relays import STOP
from swarm.transport.libp2p.stack import check_library
from swarm.transport.node import DaemonFailed, NodeSettings, StreamEnds, StreamHandler
from swarm.transport.node_transport import NodeTransport
from swarm.transport.records import MESSAGE_LIMIT, RecordGate
from swarm.transport.request_limits import CallBudget, PeerLimits
from swarm.transport.streams import LENGTH_VARINT, ask
from swarm.transport.transport import PeerUnreachable, Refused, TransportError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0
RPC_SECONDS = 1.5
STOP_SECONDS = 5.0


class Reservations:
    """Relay slots of this node, renewed in time and after a lost connection."""

    def __init__(self, host: Host, thread: TrioThread, counters: Counters) -> None:
        self._host = host
        self._thread = thread
        self._counters = counters
        self._held: dict[str, str] = {}
        self.tasks = BackgroundTasks()

    def keep(self, relays: Sequence[str]) -> None:
        """Start reserving at relays, given as full multiaddresses."""
        if relays:
            self._thread.post(self._host.speak, STOP)
        for address in relays:
            self.tasks.spawn(self._keep(address))

    def addresses(self) -> tuple[str, ...]:
        """Return this node's relayed addresses, without its id."""
        return tuple(self._held.values())

    async def _keep(self, address: str) -> None:
        relay, pause = address.rpartition("/p2p/")[2], FIRST_PAUSE
        while True:
            try:
                place = await numeric(place_of(address))
                seconds = await self._thread.call(self._host.reserve, relay, place)
                self._held[relay] = str(replace(place, relay=relay))
                pause = FIRST_PAUSE
                await self._lasts(relay, seconds / 2)
            except (TransportError, OSError, EOFError, ValueError, LookupError) as error:
                self._held.pop(relay, None)
                self._counters.add("reservations_failed")
                logger.info("peer %s does not relay for this node: %s", relay, error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _lasts(self, relay: str, seconds: float) -> None:
        """Wait so many seconds; raises ``ConnectionError`` once the slot is lost."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while loop.time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            if not await self._thread.call(self._host.relayed_by, relay):
                raise ConnectionError("its connection is gone")


class Libp2pNode:
    """One host with its DHT node; all methods belong to one event loop."""

    daemon: int | None = None

    def __init__(
        self,
        settings: NodeSettings,
        counters: Counters,
        peer_limits: PeerLimits,
        identity: Identity,
    ) -> None:
        self.peer_id = identity.peer_id
        self.addresses: tuple[str, ...] = ()
        self._places: tuple[HostPort, ...] = ()
        self._announced: tuple[str, ...] = ()
        self._settings = settings
        self._peer_limits = peer_limits
        self._thread = TrioThread("libp2p")
        self._host = Host(identity, self._thread, self._incoming, counters)
        self._handlers: dict[str, StreamHandler] = {}
        self._streams = BackgroundTasks(
            lambda error: logger.error("a stream's handler failed", exc_info=error)
        )
        self._budget = CallBudget(counters, peer_limits)
        self._introductions = Introductions(
            self._host, self._thread, self.open_stream, counters, peer_limits, self._budget
        )
        self._reservations = Reservations(self._host, self._thread, counters)
        self.hash_table = Libp2pDHT(self.peer_id, self.call_table, counters, peer_limits)

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        counters: Counters,
        predecessor: Libp2pNode | None,
        peer_limits: PeerLimits,
    ) -> Libp2pNode:
        """Listen, with a dead predecessor's id and records; raises ``DaemonFailed``."""
        check_library()
        node = cls(settings, counters, peer_limits, Identity.load(settings.identity))
        if predecessor is not None:
            node.hash_table = predecessor.hash_table
            node.hash_table.call = node.call_table
        node.hash_table.client = settings.client
        await node._thread.start()
        try:
            await node._listen()
            handlers = served_calls(node.hash_table, counters, peer_limits, node._budget)
            for protocol, handler in (handlers | node._introductions.handlers()).items():
                await node.add_handler(protocol, handler)
            node._reservations.keep(settings.relays if settings.client else ())
        except BaseException:
            await node.stop()
            raise
        return node

    @property
    def listening(self) -> tuple[str, ...]:
        return seen_at(self._places)

    @property
    def gate(self) -> RecordGate:
        return self.hash_table.share.gate

    async def connect(self, address: str, *, claimed: bool = False) -> tuple[str, float]:
        _, _, peer = address.rpartition("/p2p/")
        try:
            await self._introductions.dial(peer, await resolved(address), named=not claimed)
            _, clock = await self.hash_table.ping(peer)
        except (TransportError, OSError, EOFError, ValueError, LookupError) as error:
            raise PeerUnreachable(f"no peer answers at {address}: {error}") from error
        return peer, clock

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Return full addresses of connected peers by id; a new peer may have none yet."""
        peers: dict[str, tuple[HostPort, ...]] = await self._thread.call(self._host.connected)
        return {
            peer: tuple(f"{addr}/p2p/{peer}" for addr in self._introductions.book.met(peer, places))
            for peer, places in peers.items()
        }

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        peers: dict[str, tuple[HostPort, ...]] = await self._thread.call(self._host.connected)
        return tuple(map(str, peers.get(peer, ())))

    async def look(self) -> None:
        """Update this node's addresses: relays come and go, and a laptop moves."""
        listening = (*self._reservations.addresses(), *self._own())
        if listening != self._introductions.listening:
            self.addresses = tuple(f"{address}/p2p/{self.peer_id}" for address in listening)
            self._introductions.listen_at(listening)

    async def disconnect(self, peer: str) -> None:
        await self._thread.call(self._host.disconnect, peer)

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler
        self._thread.post(self._host.speak, protocol)

    async def open_stream(self, peer: str, protocol: str) -> StreamEnds:
        pipe = Pipe(self._thread)
        bridge = Bridge(self._thread, pipe)
        try:
            try:
                await self._thread.call(self._host.open, peer, protocol, pipe)
            except LookupError:
                await self._introductions.reach(peer)
                await self._thread.call(self._host.open, peer, protocol, pipe)
        except (OSError, EOFError, ValueError, LookupError) as error:
            raise PeerUnreachable(f"no stream to peer {peer}: {error}") from error
        except asyncio.CancelledError:
            bridge.abort()  # trio may have opened the stream meanwhile
            raise
        return bridge.reader, bridge.writer

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        try:
            return await self.call_table(peer, name, request)
        except (TransportError, ValueError) as error:
            raise Refused(f"peer {peer} did not answer {name}: {error}") from error

    async def call_table(self, peer: str, name: str, request: bytes) -> bytes:
        """Return the response to a DHT call; raises ``TransportError`` or ``ValueError``."""
        call_id, call = pack_call(peer, name, request)
        try:
            async with asyncio.timeout(RPC_SECONDS):
                reader, writer = await self.open_stream(peer, name)
                with closing(writer):
                    answer = await ask(
                        reader, writer, call, peer=peer, limit=MESSAGE_LIMIT, framing=LENGTH_VARINT
                    )
        except TimeoutError as error:
            raise PeerUnreachable(f"no answer within {RPC_SECONDS:g} s") from error
        return open_answer(answer, call_id)

    def end(self) -> None:
        self._thread.end()

    async def wait_dead(self) -> str:
        return await asyncio.shield(self._thread.ended)

    async def stop(self) -> None:
        for owner in (self.hash_table, self._introductions, self._reservations):
            owner.tasks.cancel()
        await self._streams.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._thread.stop()
        except TimeoutError:
            logger.warning("the thread of libp2p did not end within %g s", STOP_SECONDS)

    def stand_still(self, seconds: float) -> None:
        self._thread.post(time.sleep, seconds)

    async def _listen(self) -> None:
        places = []
        for address in self._settings.listen:
            try:
                place = place_of(address)
                port = await self._thread.call(self._host.listen, place.host, place.port)
            except (OSError, ValueError) as error:
                raise DaemonFailed(f"network.listen = {address}: {error}") from error
            places.append(replace(place, port=port))
        self._places = tuple(places)
        self._announced = tuple([await announced(address) for address in self._settings.announce])
        await self.look()

    def _own(self) -> tuple[str, ...]:
        return (() if self._settings.client else self._announced) or self.listening

    def _incoming(self, peer: str, protocol: str, pipe: Pipe) -> None:
        bridge = Bridge(self._thread, pipe)
        if self._peer_limits.excluded(peer):
            self._peer_limits.refused(peer)
            bridge.abort()
            return
        self._streams.spawn(self._handlers[protocol](peer, bridge.reader, bridge.writer))


class Libp2pTransport(NodeTransport):
    """A :class:`swarm.transport.transport.Transport` on a libp2p host in this process.

    It cannot share a process with hivemind: their protobuf messages collide.
    """

    def __init__(self, identity: Path, **settings: Any) -> None:
        super().__init__(Libp2pNode.start, identity, **settings)
