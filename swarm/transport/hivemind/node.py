"""One p2pd process and its DHT node. Only this file needs hivemind's classes.

The transport makes all decisions and retries. A node lives as long as its daemon. After the daemon
dies, :meth:`HivemindNode.start` creates another with the same identity, port, id and records.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from pathlib import Path
from secrets import token_bytes
from typing import Any

from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Bounded, lot
from swarm.transport.dial_limits import DialLimits, place_in
from swarm.transport.handshake import NoPeer
from swarm.transport.hivemind.dht import (
    MAX_PEERS,
    BoundedStorage,
    HivemindDHT,
    OneIdEach,
    be_client,
    by_peer,
    drop_odd_ids,
    own,
    packed,
    with_known_id,
)
from swarm.transport.node import (
    DETACHED,
    DaemonFailed,
    NodeSettings,
    StreamEnds,
    StreamHandler,
    sweep_sockets,
)
from swarm.transport.peer_connections import DialReasons
from swarm.transport.records import RecordGate, StrictSerializer
from swarm.transport.request_limits import CallBudget, PeerLimits
from swarm.transport.transport import PeerUnreachable, Refused, is_relayed

logger = logging.getLogger(__name__)

# Streams that may wait while this process is busy. Beyond asyncio's default of 100, the daemon
# resets each further stream, so a flood of streams would shut out all peers.
UNACCEPTED = 512
RPC_SECONDS = 1.5
STOP_SECONDS = 5.0


def expect_hang_ups(p2p: Any) -> None:
    """Ignore streams that the daemon closes before it identifies them.

    The daemon leaves such streams if a peer is gone before its request, and when it ends itself.
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
    """Calls that wait for an answer, without cancelled calls.

    hivemind keeps a cancelled call until the daemon knows. An answer in between would end the task
    that reads from the daemon, and the node would lose all its connections.
    """

    def __contains__(self, call: object) -> bool:
        return super().__contains__(call) and not self[call].done()


def limit_calls(p2p: Any, counters: Counters, peer_limits: PeerLimits) -> None:
    """Charge every incoming DHT call, and its answer, to the calling peer."""
    from hivemind.proto.dht_pb2 import FindRequest, PingRequest, StoreRequest

    budget = CallBudget(counters, peer_limits)
    handlers = p2p._client.control.unary_handlers
    kinds = {"ping": PingRequest, "find": FindRequest, "store": StoreRequest}

    def charged(handler: Any, kind: type[Any]) -> Any:
        async def serve(request: bytes, peer: Any) -> bytes:
            async def handle() -> bytes:
                message = with_known_id(kind.FromString(request))
                return bytes(await handler(message.SerializeToString(), peer))

            return await budget.serve(str(peer), len(request), handle)

        return serve

    for name, handler in handlers.items():
        handlers[name] = charged(handler, kinds[name.rpartition("_")[2]])


async def take_streams(p2p: Any) -> None:
    """Serve the streams that a daemon hands over, until cancelled."""
    control = p2p._client.control
    path = control.listen_maddr["unix"]
    async with await asyncio.start_unix_server(control._handler, path, backlog=UNACCEPTED):
        await asyncio.Future()


# Limits of this node as a relay. A daemon without a given role guesses it, relays 128 KiB per
# connection in two minutes, and forgets the relayed peers after its guess. With the role "public"
# it starts its relay twice, with the numbers below and with those. With one thread, as here, the
# numbers below almost always come last and apply.
RELAYED_BYTES = 64 << 20  # per connection and direction
RELAYED_SECONDS = 30 * 60  # per connection
RELAYED_CONNECTIONS = 16  # per peer
RELAYED_PEERS = 128
RELAY_BUFFER = 1 << 16  # bytes per connection; the daemon's default is 16 MiB

RELAY_FLAGS = (
    f"-relayDataLimit={RELAYED_BYTES}",
    f"-relayTimeLimit={RELAYED_SECONDS}s",
    f"-relayMaxCircuits={RELAYED_CONNECTIONS}",
    f"-relayMaxReservations={RELAYED_PEERS}",
    f"-relayBufferSize={RELAY_BUFFER}",
    # With discovery, the daemon waits three minutes for relays that no setting names.
    "-relayDiscovery=0",
)


def options(settings: NodeSettings) -> dict[str, Any]:
    """Return the arguments of hivemind's ``P2P.create``."""
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


class HivemindNode:
    """A running daemon with its DHT node. All methods belong to one event loop."""

    def __init__(
        self,
        p2p: Any,
        dht: Any,
        gate: RecordGate,
        visible: tuple[str, ...],
        counters: Counters,
        dials: DialLimits,
    ) -> None:
        from hivemind.dht.storage import DictionaryDHTValue
        from hivemind.proto import dht_pb2

        self.p2p = p2p
        self.dht = dht
        self.gate = gate
        self.addresses = self.listening = visible
        self.peer_id = str(p2p.peer_id)
        self._id_of = type(p2p.peer_id).from_base58
        self.hash_table = HivemindDHT(dht, dht_pb2, DictionaryDHTValue, gate, counters)
        self._reasons = DialReasons()
        self._met: dict[str, tuple[str, ...]] = {}
        secret = token_bytes(32)
        self._seen_at: Bounded[str, tuple[str, ...]] = Bounded(
            MAX_PEERS, lambda peer: lot(secret, peer.encode())
        )
        self._call_handler = self.control.call_unary_handler
        self.control.call_unary_handler = self._call_checked
        self._dials = dials

    @classmethod
    async def start(
        cls,
        settings: NodeSettings,
        counters: Counters,
        predecessor: HivemindNode | None = None,
        peer_limits: PeerLimits | None = None,
    ) -> HivemindNode:
        """Start a daemon with a predecessor's id and records; raise ``DaemonFailed``."""
        from hivemind.dht.storage import DictionaryDHTValue
        from hivemind.utils.logging import use_hivemind_log_handler

        peer_limits = peer_limits or PeerLimits(SystemClock(), counters)
        sweep_sockets()
        use_hivemind_log_handler("nowhere")
        logging.addLevelName(logging.WARNING, "WARNING")
        serializer = StrictSerializer(DictionaryDHTValue)
        gate = predecessor.gate if predecessor else RecordGate(serializer, counters)
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
        if predecessor:
            dht.protocol.storage = predecessor.dht.protocol.storage
        else:
            dht.protocol.storage = BoundedStorage(
                dht.protocol.storage,
                counters,
                peer_limits,
                lambda key, value: gate.stored(key.to_bytes(), value),
            )
        # A sender chooses whether a record goes into hivemind's second, unbounded table.
        dht.protocol.cache = dht.protocol.storage
        drop_odd_ids(dht.protocol)
        dht.protocol.update_routing_table = OneIdEach(dht.protocol, counters, peer_limits).update
        limit_calls(p2p, counters, peer_limits)
        expect_hang_ups(p2p)
        return cls(p2p, dht, gate, visible, counters, peer_limits.dials)

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

        daemons: list[P2P] = []

        class Daemon(P2P):  # type: ignore[misc,unused-ignore]
            """p2pd in a session of its own, which a Ctrl-C in our terminal does not reach."""

            def __init__(self) -> None:
                super().__init__()
                daemons.append(self)

            @staticmethod
            def _make_process_args(*args: Any, **options: Any) -> list[str]:
                return [*DETACHED, *P2P._make_process_args(*args, **options), *RELAY_FLAGS]

            def _start_listening(self) -> None:
                self._listen_task = asyncio.ensure_future(take_streams(self))

        try:
            # The transport dials bootstrap peers: a daemon with dead bootstrap peers exits.
            return await Daemon.create(**options(settings))
        except BaseException as error:
            # hivemind does not stop a p2pd that it started and that is not up yet.
            for daemon in daemons:
                await _shut_down(daemon)
            if not isinstance(error, P2PDaemonError | OSError | ValueError):
                raise
            raise DaemonFailed(
                f"the p2p daemon did not start: {error}; check network.listen "
                f"({', '.join(settings.listen)}), raise network.start_timeout on a busy machine"
            ) from error

    @property
    def control(self) -> Any:
        """hivemind's client of the daemon: outgoing calls and handlers of incoming ones."""
        return self.p2p._client.control

    @property
    def daemon(self) -> int | None:
        child = self.p2p._child
        return child.pid if child.returncode is None else None

    async def connect(self, address: str, *, claimed: bool = False) -> tuple[str, float]:
        from hivemind.proto.dht_pb2 import PingRequest

        try:
            endpoint, _, peer_id = address.rpartition("/p2p/")
            peer = self._id_of(peer_id)
            connected = peer_id in await self.connected()
            if claimed and not connected and not await self._dials.prove(*place_in(address)):
                raise PeerUnreachable("another peer answers there")
            await self._dial(peer_id, endpoint)
            protocol = self.dht.protocol
            answer = await protocol.get_stub(peer).rpc_ping(
                PingRequest(peer=protocol.node_info), timeout=RPC_SECONDS
            )
            raw = answer.peer.node_id
            node = type(self.dht.node_id).from_bytes(raw) if raw else None  # a client sends none
        except Exception as error:
            raise PeerUnreachable(
                f"no peer answers at {address}: {self._reasons.of(address, error)}"
            ) from error
        self._reasons.forget(address)
        if not connected:
            self._dials.note(address)
        if node is not None:
            await protocol.update_routing_table(node, peer, responded=True)
        return str(peer), float(answer.dht_time)

    async def _dial(self, peer: str, address: str) -> None:
        from hivemind.utils.multiaddr import Multiaddr

        endpoint = address.removesuffix(f"/p2p/{peer}")
        await self.p2p._client.connect(self._id_of(peer), [packed(endpoint, Multiaddr)])

    async def connected(self) -> dict[str, tuple[str, ...]]:
        self._met = by_peer(await self.p2p.list_peers())
        for peer, addresses in self._met.items():
            self._seen_at.put(peer, addresses)
        return self._met

    async def _check(self, peer: str) -> None:
        """Raise ``PeerUnreachable`` for a lost peer that is neither where it was nor found.

        The daemon dials a lost peer wherever the peer claimed to listen, which may be elsewhere,
        so it may look for a few of them only.
        """
        if peer in self._met or peer in await self.connected():
            return
        addresses = self._seen_at.get(peer)
        for address in addresses or ():
            try:
                if is_relayed(address) or await self._dials.prove(*place_in(address)):
                    return
            except (NoPeer, OSError) as error:
                logger.debug("peer %s is lost: %s", peer, error)
        if addresses:
            try:
                await self._dials.find(lambda: self._dial(peer, addresses[0]))
            except Exception as error:
                raise PeerUnreachable(f"peer {peer} is lost: {error}") from error

    async def seen_at(self, peer: str) -> tuple[str, ...]:
        return (await self.connected()).get(peer, ())

    async def look(self) -> None:
        _, addresses = await self.p2p._client.identify()
        self.addresses = own(addresses, self.peer_id)

    async def add_handler(self, protocol: str, handler: StreamHandler) -> None:
        async def on_stream(info: Any, reader: Any, writer: Any) -> None:
            await handler(str(info.peer_id), reader, writer)

        await self.p2p.add_binary_stream_handler(protocol, on_stream)

    async def _call_checked(self, peer: Any, *request: Any) -> Any:
        await self._check(str(peer))
        return await self._call_handler(peer, *request)

    async def open_stream(self, peer: str, protocol: str) -> StreamEnds:
        from hivemind.p2p.p2p_daemon_bindings.utils import read_pbmsg_safe, write_pbmsg
        from hivemind.proto import p2pd_pb2

        await self._check(peer)
        reader, writer = await self.control.daemon_connector.open_connection()
        try:
            request = p2pd_pb2.StreamOpenRequest(
                peer=self._id_of(peer).to_bytes(), proto=[protocol]
            )
            await write_pbmsg(writer, p2pd_pb2.Request(type="STREAM_OPEN", streamOpen=request))
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
        try:
            async with asyncio.timeout(RPC_SECONDS):
                response = self.control.call_unary_handler(self._id_of(peer), name, request)
                return bytes(await response)
        except Exception as error:
            raise Refused(f"peer {peer} did not answer {name}: {error!r}") from error

    async def disconnect(self, peer: str) -> None:
        await self.p2p._client.disconnect(self._id_of(peer))

    def stand_still(self, seconds: float) -> None:
        """Do nothing: the node has no threads, and others can stop the daemon."""

    async def wait_dead(self) -> str:
        exit_task = asyncio.ensure_future(self.p2p._child.wait())
        read_task = self.control._read_task
        try:
            await asyncio.wait({exit_task, read_task}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            exit_task.cancel()
        code = self.p2p._child.returncode
        return "the daemon hung up" if code is None else f"the daemon exited with status {code}"

    def end(self) -> None:
        if self.daemon is not None:
            self.p2p._child.terminate()

    async def stop(self) -> None:
        self.dht.is_alive = False
        await _shut_down(self.p2p)


async def _shut_down(p2p: Any) -> None:
    # Works at every stage of the daemon's start.
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
