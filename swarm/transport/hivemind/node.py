"""One p2pd process and the DHT node that speaks through it: the only file that imports hivemind.

Nothing here decides or retries; the transport does. A node lives as long as its daemon: after that
one's death :meth:`HivemindNode.start` makes another with the same identity, port, id and records.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.transport.hivemind.dht import (
    BoundedStorage,
    HashTable,
    Kinds,
    be_client,
    by_peer,
    guard_routing,
    own,
    packed,
)
from swarm.transport.node import (
    DETACHED,
    DaemonFailed,
    NodeSettings,
    StreamHandler,
    sweep_sockets,
    with_port_of,
)
from swarm.transport.peer_connections import DialReasons
from swarm.transport.records import RecordGate, StrictSerializer
from swarm.transport.request_limits import CallBudget, Guests
from swarm.transport.transport import PeerUnreachable, Refused

logger = logging.getLogger(__name__)

UNACCEPTED = 512
"""Streams that may wait for this process while it does something else. Beyond asyncio's hundred the
daemon resets every further one, so that a flood of streams would shut everybody out."""


def expect_hang_ups(p2p: Any) -> None:
    """Take a stream that the daemon closes before it says whose it is for what it is: no stream.

    The daemon leaves such when a peer is gone before its request, and when it ends itself.
    """
    control = p2p._client.control
    receive = control._handler

    async def on_stream(reader: Any, writer: Any) -> None:
        try:
            await receive(reader, writer)
        except (EOFError, ConnectionError) as error:
            logger.debug("a stream broke off: %s", error)
            writer.close()

    control._handler = on_stream


class PendingCalls(dict[Any, "asyncio.Future[Any]"]):
    """Calls that wait for an answer; one that was given up is not among them.

    hivemind keeps a cancelled call until the daemon knows. An answer that comes meanwhile would
    end the task that reads from the daemon, and so cost the node all its connections.
    """

    def __contains__(self, call: object) -> bool:
        return super().__contains__(call) and not self[call].done()


def limit_calls(p2p: Any, counters: Counters, guests: Guests) -> None:
    """Charge every DHT call that comes in, and its answer, to whoever calls."""
    budget = CallBudget(counters, guests)
    handlers = p2p._client.control.unary_handlers

    def charged(handler: Any) -> Any:
        async def serve(request: bytes, peer: Any) -> bytes:
            async def handle() -> bytes:
                return bytes(await handler(request, peer))

            return await budget.serve(str(peer), len(request), handle)

        return serve

    for name, handler in handlers.items():
        handlers[name] = charged(handler)


async def take_streams(p2p: Any) -> None:
    """Serve the streams that a daemon hands over, until cancelled."""
    control = p2p._client.control
    path = control.listen_maddr["unix"]
    async with await asyncio.start_unix_server(control._handler, path, backlog=UNACCEPTED):
        await asyncio.Future()


RELAYED_BYTES = 64 << 20
RELAYED_SECONDS = 30 * 60
RELAYED_CONNECTIONS = 16
RELAYED_PEERS = 128
RELAY_BUFFER = 1 << 16
"""What a node does for others as a relay: bytes each way and seconds of a connection, connections
of a peer, peers, and bytes of a connection's buffer, of which the daemon's own is 16 MiB.

A daemon whose role is not told guesses it, relays 128 KiB a connection in two minutes, and forgets
whom it relays for once it has guessed. Told that it is public it starts its relay twice, with the
numbers above and with those; with one thread, as it has here, those above all but always come last
and are in force."""

RELAY_FLAGS = (
    f"-relayDataLimit={RELAYED_BYTES}",
    f"-relayTimeLimit={RELAYED_SECONDS}s",
    f"-relayMaxCircuits={RELAYED_CONNECTIONS}",
    f"-relayMaxReservations={RELAYED_PEERS}",
    f"-relayBufferSize={RELAY_BUFFER}",
    # With discovery the daemon waits three minutes for relays that nobody named.
    "-relayDiscovery=0",
)


def options(settings: NodeSettings) -> dict[str, Any]:
    """Arguments of hivemind's ``P2P.create``."""
    return {
        "identity_path": str(settings.identity),
        "check_if_identity_free": False,
        "host_maddrs": settings.listen,
        "announce_maddrs": None if settings.client else settings.announce or None,
        "force_reachability": settings.role or None,
        "dht_mode": "client" if settings.client else "server",
        "trusted_relays": settings.relays or None,
        "use_auto_relay": bool(settings.relays),
        "nat_port_map": not all("/127.0.0.1/" in address for address in settings.listen),
        "startup_timeout": settings.start_timeout,
    }


RPC_SECONDS = 1.5
STOP_SECONDS = 5.0


class HivemindNode:
    """A running daemon with its DHT node. All methods belong to one event loop."""

    def __init__(
        self, p2p: Any, dht: Any, gate: RecordGate, visible: tuple[str, ...], counters: Counters
    ) -> None:
        self.p2p = p2p
        self.dht = dht
        self._gate = gate
        self._table = HashTable(dht, _kinds(), gate, counters)
        self._visible = visible
        self._reasons = DialReasons()

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        counters: Counters,
        predecessor: HivemindNode | None = None,
        guests: Guests | None = None,
    ) -> HivemindNode:
        """Start a daemon, taking over the DHT id and the records of a dead predecessor.

        Raises:
            DaemonFailed
        """
        from hivemind.dht.storage import DictionaryDHTValue
        from hivemind.utils.logging import use_hivemind_log_handler

        guests = guests or Guests(SystemClock(), counters)
        sweep_sockets()
        use_hivemind_log_handler("nowhere")
        logging.addLevelName(logging.WARNING, "WARNING")
        serializer = StrictSerializer(DictionaryDHTValue)
        gate = predecessor._gate if predecessor else RecordGate(serializer, counters)
        p2p = await cls._start_daemon(settings)
        p2p._client.control._pending_calls = PendingCalls()
        try:
            dht = await cls._start_dht(p2p, gate, predecessor)
            if settings.client:
                be_client(dht.protocol)
            visible = own(p2p._visible_maddrs, str(p2p.peer_id))
        except BaseException:
            await _shut_down(p2p)
            raise
        dht.protocol.serializer = serializer
        dht.protocol._validate_dictionary = gate.prune
        dht.protocol.storage = (
            predecessor.dht.protocol.storage
            if predecessor
            else BoundedStorage(
                dht.protocol.storage,
                counters,
                guests,
                lambda key, value: gate.stored(key.to_bytes(), value),
            )
        )
        guard_routing(dht.protocol, counters, guests)
        limit_calls(p2p, counters, guests)
        expect_hang_ups(p2p)
        return cls(p2p, dht, gate, visible, counters)

    @staticmethod
    async def _start_dht(p2p: Any, gate: RecordGate, predecessor: HivemindNode | None) -> Any:
        from hivemind.dht.node import DHTNode

        return await DHTNode.create(
            p2p=p2p,
            node_id=predecessor.dht.node_id if predecessor else None,
            wait_timeout=RPC_SECONDS,
            cache_locally=False,
            cache_on_store=False,
            cache_nearest=0,
            reuse_get_requests=False,
            record_validator=gate,
        )

    @staticmethod
    async def _start_daemon(settings: NodeSettings) -> Any:
        from hivemind.p2p import P2P
        from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError

        begun: list[P2P] = []

        class Daemon(P2P):  # type: ignore[misc,unused-ignore]
            """Starts p2pd in a session of its own, out of reach of a Ctrl-C in our terminal."""

            def __init__(self) -> None:
                super().__init__()
                begun.append(self)

            @staticmethod
            def _make_process_args(*args: Any, **options: Any) -> list[str]:
                return [*DETACHED, *P2P._make_process_args(*args, **options), *RELAY_FLAGS]

            def _start_listening(self) -> None:
                self._listen_task = asyncio.ensure_future(take_streams(self))

        try:
            # Bootstrap peers are dialled by the transport: a daemon that is given dead ones exits.
            return await Daemon.create(**options(settings))
        except BaseException as error:
            # hivemind leaves a p2pd that it has started and that is not up yet.
            for each in begun:
                await _shut_down(each)
            if not isinstance(error, P2PDaemonError | OSError | ValueError):
                raise
            raise DaemonFailed(
                f"the p2p daemon did not start: {error}; check network.listen "
                f"({', '.join(settings.listen)}), raise network.start_timeout on a busy machine"
            ) from error

    @property
    def control(self) -> Any:
        """hivemind's client of the daemon: calls that go out, handlers of those that come in."""
        return self.p2p._client.control

    @property
    def peer_id(self) -> str:
        return str(self.p2p.peer_id)

    @property
    def daemon(self) -> int | None:
        """Process id of the daemon; None once it has exited."""
        child = self.p2p._child
        return child.pid if child.returncode is None else None

    @property
    def gate(self) -> RecordGate:
        return self._gate

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._visible

    async def connect(self, address: str) -> tuple[str, float]:
        """Dial a peer and meet it in the DHT: its id, and its clock in unix seconds.

        Raises:
            PeerUnreachable
        """
        from hivemind.dht.routing import DHTID
        from hivemind.p2p import PeerID
        from hivemind.proto.dht_pb2 import PingRequest
        from hivemind.utils.multiaddr import Multiaddr

        try:
            host, _, peer_id = address.rpartition("/p2p/")
            peer = PeerID.from_base58(peer_id)
            await self.p2p._client.connect(peer, [packed(host, Multiaddr)])
            protocol = self.dht.protocol
            answer = await protocol.get_stub(peer).rpc_ping(
                PingRequest(peer=protocol.node_info), timeout=RPC_SECONDS
            )
            raw = answer.peer.node_id
            node = DHTID.from_bytes(raw) if raw else None  # a client names none
        except Exception as error:
            raise PeerUnreachable(
                f"no peer answers at {address}: {self._reasons.of(address, error)}"
            ) from error
        self._reasons.forget(address)
        if node is not None:
            await protocol.update_routing_table(node, peer, responded=True)
        return str(peer), float(answer.dht_time)

    async def find_neighbours(self) -> None:
        await self._table.find_neighbours()

    async def connected(self) -> dict[str, tuple[str, ...]]:
        """Full addresses of the peers this daemon is connected to, by peer id."""
        return by_peer(await self.p2p.list_peers())

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        return (await self.connected()).get(peer, ())

    async def look(self) -> None:
        """Bring the addresses up to date: those through relays come and go."""
        _, now = await self.p2p._client.identify()
        self._visible = own(now, self.peer_id)

    async def store(self, key: str, subkey: bytes, value: bytes, expiry: float) -> bool:
        """Whether at least one replica took the record."""
        return await self._table.store(key, subkey, value, expiry)

    async def read(self, key: str) -> dict[bytes, bytes]:
        """Records under ``key``, merged over its replicas."""
        return await self._table.read(key)

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        """Serve incoming streams of ``protocol``."""

        async def on_stream(info: Any, reader: Any, writer: Any) -> None:
            await handler(str(info.peer_id), reader, writer)

        await self.p2p.add_binary_stream_handler(protocol, on_stream)

    async def open_stream(
        self, peer: str, protocol: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to ``peer``, dialling it if need be.

        Raises:
            PeerUnreachable
        """
        from hivemind.p2p import PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
        from hivemind.proto import p2pd_pb2

        reader, writer = await self.control.daemon_connector.open_connection()
        try:
            opening = p2pd_pb2.StreamOpenRequest(
                peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol]
            )
            await write_pbmsg(writer, p2pd_pb2.Request(type="STREAM_OPEN", streamOpen=opening))
            response = p2pd_pb2.Response()
            await read_pbmsg_safe(reader, response)
            if response.type == p2pd_pb2.Response.ERROR:
                reason = self._reasons.of(peer, RuntimeError(response.error.msg))
                raise PeerUnreachable(f"no stream to peer {peer}: {reason}")
        except BaseException:
            writer.close()
            raise
        return reader, writer

    async def call(self, peer: str, name: str, request: bytes) -> bytes:
        """What a peer's handler of that name answers; :class:`Refused` where it does not."""
        from hivemind.p2p import PeerID

        try:
            async with asyncio.timeout(RPC_SECONDS):
                handled = self.control.call_unary_handler(PeerID.from_base58(peer), name, request)
                return bytes(await handled)
        except Exception as error:
            raise Refused(f"peer {peer} did not answer {name}: {error!r}") from error

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer, and its streams with them."""
        from hivemind.p2p import PeerID

        await self.p2p._client.disconnect(PeerID.from_base58(peer))

    def stand_still(self, seconds: float) -> None:
        """It has no thread of its own; whoever may stop the daemon does so from outside."""

    async def wait_dead(self) -> str:
        """Return when the daemon has exited or hung up, with what happened."""
        exited = asyncio.ensure_future(self.p2p._child.wait())
        hung_up = self.control._read_task
        try:
            await asyncio.wait({exited, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exited.cancel()
        code = self.p2p._child.returncode
        return "the daemon hung up" if code is None else f"the daemon exited with status {code}"

    def end(self) -> None:
        """Have the daemon exit, so that whoever watches it starts another."""
        if self.daemon is not None:
            self.p2p._child.terminate()

    async def stop(self) -> None:
        """End the daemon and remove its sockets."""
        self.dht.is_alive = False
        await _shut_down(self.p2p)

    def at_same_port(self, settings: NodeSettings) -> NodeSettings:
        """``settings`` with the port that was drawn for ``/tcp/0`` written into ``listen``."""
        return replace(settings, listen=with_port_of(self._visible, settings.listen))


async def _shut_down(p2p: Any) -> None:
    """End a daemon, however far its start has come, and remove its sockets."""
    child = p2p._child
    if child is None:
        return
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await p2p.shutdown()
    except TimeoutError:
        logger.warning("p2pd did not stop within %g s; killing it", STOP_SECONDS)
        child.kill()
        await child.wait()
    for address in (p2p._daemon_listen_maddr, p2p._client_listen_maddr):
        with suppress(FileNotFoundError):
            Path(address["unix"]).unlink()


def _kinds() -> Kinds:
    from hivemind.dht.storage import DictionaryDHTValue
    from hivemind.proto import dht_pb2

    return Kinds(dht_pb2.FindRequest, DictionaryDHTValue, dht_pb2.FOUND_DICTIONARY)
