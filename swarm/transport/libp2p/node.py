"""A node over the package libp2p: connections on trio's thread, the hash table on asyncio's.

It has the face of :class:`swarm.transport.node.Node`; after its failure :meth:`Libp2pNode.start`
makes another with the same identity, port, node id and records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import Place, place_of, resolved, seen_at
from swarm.transport.libp2p.bridge import Bridge, Pipe, TrioThread
from swarm.transport.libp2p.calls import open_answer, pack_call
from swarm.transport.libp2p.dht import HashTable, served_calls
from swarm.transport.libp2p.host import Host
from swarm.transport.libp2p.introductions import Introductions
from swarm.transport.libp2p.relays import STOP
from swarm.transport.libp2p.stack import check_library
from swarm.transport.node import DaemonFailed, NodeSettings, StreamHandler, with_port_of
from swarm.transport.node_transport import NodeTransport
from swarm.transport.records import MESSAGE_LIMIT, RecordGate
from swarm.transport.request_limits import Guests
from swarm.transport.streams import Varint, ask
from swarm.transport.transport import PeerUnreachable, Refused, TransportError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
FIRST_PAUSE = 1.0
LONGEST_PAUSE = 30.0


class Reservations:
    """Asks each relay for its place, and again in time, or once their connection was lost."""

    def __init__(self, host: Host, thread: TrioThread, counters: Counters) -> None:
        self._host = host
        self._thread = thread
        self._counters = counters
        self._held: dict[str, str] = {}
        self._working: list[asyncio.Task[None]] = []

    def keep(self, relays: Sequence[str]) -> None:
        """Begin.

        Args:
            relays: full multiaddresses.
        """
        if relays:
            self._thread.post(self._host.speak, STOP)
        self._working = [asyncio.ensure_future(self._keep(address)) for address in relays]

    def close(self) -> None:
        """End; the relays notice by themselves."""
        for task in self._working:
            task.cancel()

    def addresses(self) -> tuple[str, ...]:
        """Where this node is reached through its relays, without its id."""
        return tuple(self._held.values())

    async def _keep(self, address: str) -> None:
        relay, pause = address.rpartition("/p2p/")[2], FIRST_PAUSE
        while True:
            try:
                place = place_of(address)
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
        """Return after so many seconds; raises ``ConnectionError`` once the place is lost."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while loop.time() < until:
            await asyncio.sleep(LOOK_SECONDS)
            if relay not in await self._thread.call(self._host.relayed_by):
                raise ConnectionError("its connection is gone")


RPC_SECONDS = 1.5
STOP_SECONDS = 5.0
LENGTH_VARINT = Varint()


class Libp2pNode:
    """One host with its hash table. All methods belong to one event loop."""

    daemon: int | None = None

    def __init__(
        self, settings: NodeSettings, counters: Counters, guests: Guests, identity: Identity
    ) -> None:
        self.peer_id = identity.peer_id
        self.addresses: tuple[str, ...] = ()
        self._listening: tuple[Place, ...] = ()
        self._settings = settings
        self._guests = guests
        self._thread = TrioThread("libp2p")
        self._host = Host(identity, self._thread, self._incoming, counters)
        self._handlers: dict[str, StreamHandler] = {}
        self._streams: set[asyncio.Task[None]] = set()
        self._introductions = Introductions(self._host, self._thread, self.open_stream, counters)
        self._reservations = Reservations(self._host, self._thread, counters)
        self.hash_table = HashTable(self.peer_id, self.call_table, counters, guests)

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        counters: Counters,
        predecessor: Libp2pNode | None,
        guests: Guests,
    ) -> Libp2pNode:
        """Listen, taking over the node id and the records of a dead predecessor.

        Raises:
            DaemonFailed
        """
        check_library()
        node = cls(settings, counters, guests, Identity.load(settings.identity))
        if predecessor is not None:
            node.hash_table = predecessor.hash_table
            node.hash_table.go_on_over(node.call_table)
        node.hash_table.client = settings.client
        await node._thread.start()
        try:
            await node._listen()
            for calls in served_calls(node.hash_table, counters, guests):
                await node.add_handler(calls.protocol, calls.serve)
            for protocol, handler in node._introductions.handlers().items():
                await node.add_handler(protocol, handler)
            node._reservations.keep(settings.relays if settings.client else ())
        except BaseException:
            await node.stop()
            raise
        return node

    @property
    def gate(self) -> RecordGate:
        """Where the check of records is set."""
        return self.hash_table.share.gate

    async def connect(self, address: str) -> tuple[str, float]:
        """Dial a peer and meet it in the hash table: its id, and its clock in unix seconds.

        Raises:
            PeerUnreachable
        """
        _, _, peer = address.rpartition("/p2p/")
        try:
            await self._introductions.dial(peer, await resolved(address))
            clock = await self.hash_table.ping(peer)
        except (TransportError, OSError, EOFError, ValueError, LookupError) as error:
            raise PeerUnreachable(f"no peer answers at {address}: {error}") from error
        return peer, clock

    async def find_neighbours(self) -> None:
        """Fill the routing table with the nodes nearest to this one."""
        await self.hash_table.find_neighbours()

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Full addresses of the peers connected, by peer id; none yet of who has just come."""
        peers: dict[str, tuple[Place, ...]] = await self._thread.call(self._host.connected)
        return {
            peer: tuple(f"{at}/p2p/{peer}" for at in self._introductions.book.met(peer, places))
            for peer, places in peers.items()
        }

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        """Where a peer's connections come from or go to, whatever it says itself."""
        peers: dict[str, tuple[Place, ...]] = await self._thread.call(self._host.connected)
        return tuple(map(str, peers.get(peer, ())))

    async def look(self) -> None:
        """Bring the addresses up to date: those through relays come and go, and a laptop moves."""
        told = (*self._reservations.addresses(), *self._own())
        if told != self._introductions.listening:
            self.addresses = tuple(f"{address}/p2p/{self.peer_id}" for address in told)
            self._introductions.listen_at(told)

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer, and its streams with them."""
        await self._thread.call(self._host.disconnect, peer)

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Whether at least one replica took the record."""
        return await self.hash_table.store(key, subkey, value, expiry)

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Records under ``key``, merged over its replicas."""
        return await self.hash_table.read(key)

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of ``protocol``."""
        self._handlers[protocol] = handler
        self._thread.post(self._host.speak, protocol)

    async def open_stream(
        self, peer: str, protocol: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to ``peer``, dialling it if need be.

        Raises:
            PeerUnreachable
        """
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
        return bridge.reader, bridge.writer

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        """What a peer's handler of that name answers; :class:`Refused` where it does not."""
        try:
            return await self.call_table(peer, name, request)
        except (TransportError, ValueError) as error:
            raise Refused(f"peer {peer} did not answer {name}: {error}") from error

    async def call_table(self, peer: str, name: str, request: bytes) -> bytes:
        """The response to a call of the hash table.

        Raises:
            TransportError, ValueError
        """
        call_id, call = pack_call(peer, name, request)
        try:
            async with asyncio.timeout(RPC_SECONDS):
                reader, writer = await self.open_stream(peer, name)
                try:
                    answer = await ask(
                        reader,
                        writer,
                        call,
                        peer=peer,
                        limit=MESSAGE_LIMIT,
                        framing=LENGTH_VARINT,
                    )
                finally:
                    writer.close()
        except TimeoutError as error:
            raise PeerUnreachable(f"no answer within {RPC_SECONDS:g} s") from error
        return open_answer(answer, call_id)

    def end(self) -> None:
        """Have the thread end, so that whoever watches it starts another."""
        self._thread.end()

    async def wait_dead(self) -> str:
        """Return when the thread has ended, with what happened."""
        return await asyncio.shield(self._thread.ended)

    async def stop(self) -> None:
        """End all connections."""
        self.hash_table.close()
        self._introductions.close()
        self._reservations.close()
        for task in list(self._streams):
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await self._thread.stop()
        except TimeoutError:
            logger.warning("the thread of libp2p did not end within %g s", STOP_SECONDS)

    def stand_still(self, seconds: float) -> None:
        """Let the other thread stand still for a while as well."""
        self._thread.stand_still(seconds)

    def at_same_port(self, settings: NodeSettings) -> NodeSettings:
        """``settings`` with the port that was drawn for ``/tcp/0`` written into ``listen``."""
        return replace(settings, listen=with_port_of(seen_at(self._listening), settings.listen))

    async def _listen(self) -> None:
        places = []
        for address in self._settings.listen:
            try:
                place = place_of(address)
                port = await self._thread.call(self._host.listen, place.host, place.port)
            except (OSError, ValueError) as error:
                raise DaemonFailed(f"network.listen = {address}: {error}") from error
            places.append(replace(place, port=port))
        self._listening = tuple(places)
        await self.look()

    def _own(self) -> tuple[str, ...]:
        """Where this node listens itself, as others are told."""
        announced = () if self._settings.client else self._settings.announce
        return announced or seen_at(self._listening)

    def _incoming(self, peer: str, protocol: str, pipe: Pipe) -> None:
        """Let the handler of a protocol have a stream that somebody opened."""
        bridge = Bridge(self._thread, pipe)
        if self._guests.shown_out(peer):
            self._guests.refused(peer)
            bridge.abort()
            return
        self._spawn(self._handlers[protocol](peer, bridge.reader, bridge.writer))

    def _spawn(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._streams.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._streams.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a stream's handler failed", exc_info=error)


class Libp2pTransport(NodeTransport):
    """:class:`swarm.transport.transport.Transport` over a host of this process.

    Not in one process with hivemind: their versions of protobuf's messages collide.

    Args:
        identity, settings: as of :class:`NodeTransport`.
    """

    def __init__(self, identity: Path, **settings: Any) -> None:
        super().__init__(Libp2pNode.start, identity, **settings)
