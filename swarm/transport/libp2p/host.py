"""Connections and streams of one identity, on the trio thread.

Noise proves the identity of each connection before use. Four limits bound the connections:
half-open ones, those per source address, those per peer, and the total.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import trio

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p import relays
from swarm.transport.libp2p.addresses import HostPort
from swarm.transport.libp2p.bridge import NEGOTIATION_SECONDS, Pipe, Proposed, Source, TrioThread
from swarm.transport.libp2p.relays import BufferedWire, Circuit
from swarm.transport.libp2p.stack import Muxed, Stack, Stream, accept, end, proposal

logger = logging.getLogger(__name__)

KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}
WIRE_BYTES = 1 << 16
UPGRADE_SECONDS = 5.0
MAX_HALF_OPEN = 64
MOST_HALF_OPEN = 512  # limit for sources without another half-open one; a relay counts as one
MAX_CONNECTIONS = 512
MAX_OF_PEER = 4
BACKLOG = 128

Incoming = Callable[[str, str, Pipe], None]  # (peer id, protocol, pipe), on the asyncio loop


@dataclass(frozen=True, eq=False, slots=True)
class Connection:
    """One connection, its remote end, and whether this node dialed it."""

    muxed: Muxed
    place: HostPort
    dialed: bool


class Connections:
    """Connections that carry streams, by peer, oldest first."""

    def __init__(self) -> None:
        self._held: dict[str, list[Connection]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, peer: str) -> tuple[Connection, ...]:
        """Return the connections with a peer, oldest first."""
        return tuple(self._held.get(peer, ()))

    def places(self) -> dict[str, tuple[HostPort, ...]]:
        """Return the remote ends of all connections, by peer id."""
        return {peer: tuple(conn.place for conn in conns) for peer, conns in self._held.items()}

    def best(self, peer: str) -> Connection:
        """Return the latest connection with a peer, a direct one if possible.

        Raises ``LookupError`` if there is none.
        """
        candidates = self.of(peer)
        direct = [connection for connection in candidates if not connection.place.relay]
        if not candidates:
            raise LookupError(peer)
        return (direct or candidates)[-1]

    def add(self, connection: Connection) -> None:
        self._held.setdefault(connection.muxed.peer, []).append(connection)

    def remove(self, connection: Connection) -> None:
        peer = connection.muxed.peer
        remaining = [other for other in self._held.pop(peer, ()) if other is not connection]
        if remaining:
            self._held[peer] = remaining

    def most_common(self) -> Connection:
        """Return the oldest incoming one of the busiest source; raises ``ValueError``."""
        incoming = [conn for conns in self._held.values() for conn in conns if not conn.dialed]
        sources = Counter(conn.place.source for conn in incoming)
        return max(incoming, key=lambda conn: sources[conn.place.source])


def keep_alive(tcp: trio.SocketStream) -> None:
    """Enable TCP keepalive: a silent peer is detected within a minute."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _first_cause(error: BaseException) -> str:
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return _first_cause(cause.exceptions[0])
    return _first_cause(cause) if cause else getattr(error, "strerror", None) or str(error)


class Wire(BufferedWire):
    """A TCP connection."""

    def __init__(self, tcp: trio.SocketStream) -> None:
        super().__init__()
        self._tcp = tcp

    async def write(self, data: bytes) -> None:
        try:
            await self._tcp.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError("the connection is gone") from error

    async def close(self) -> None:
        await self._tcp.aclose()

    async def _receive(self) -> bytes:
        try:
            return bytes(await self._tcp.receive_some(WIRE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""


class Host:
    """Listener, dialer and stream carrier; methods run on trio (not the constructor)."""

    def __init__(
        self, identity: Identity, thread: TrioThread, incoming: Incoming, counters: Counters
    ) -> None:
        self.stack = Stack(identity)
        self._thread = thread
        self._incoming = incoming
        self._counters = counters
        self._connections = Connections()
        self._half_open: Counter[str] = Counter()
        self._spoken: set[str] = set()
        self._relays: dict[str, Muxed] = {}
        self.on_connection: Callable[[str], object] = lambda peer: None

    def speak(self, protocol: str) -> None:
        self._spoken.add(protocol)

    async def listen(self, host: str, port: int) -> int:
        """Listen; return the port, chosen by the system if 0. Raises ``OSError``."""
        (listener,) = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
        self._thread.nursery.start_soon(trio.serve_listeners, self._accepted, [listener])
        return int(listener.socket.getsockname()[1])

    async def connected(self) -> dict[str, tuple[HostPort, ...]]:
        return self._connections.places()

    async def spoken(self) -> tuple[str, ...]:
        """Return the protocols whose streams this node accepts."""
        return tuple(sorted(self._spoken))

    async def dial(self, peer: str, place: HostPort) -> bool:
        """Connect unless connected, and return whether the peer answered there.

        A relay must be connected, because its own dial is limited elsewhere. Raises ``OSError``,
        ``EOFError`` or ``ValueError``.
        """
        if self._connections.of(peer):
            return False
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                muxed = await self._upgrade(await self._wire(peer, place), peer)
        except trio.TooSlowError:
            raise ConnectionError(f"no answer within {UPGRADE_SECONDS:g} s") from None
        await self._thread.nursery.start(self._hold, Connection(muxed, place, dialed=True))
        return True

    async def open(self, peer: str, protocol: str, pipe: Pipe) -> None:
        """Open a stream; raises ``LookupError`` if the peer is not connected.

        ``pipe`` starts before the peer accepts, so the request is sent together with the proposal.
        """
        while True:
            connection = self._connections.best(peer)
            try:
                stream = await connection.muxed.open()
                await stream.write(proposal(protocol))
            except OSError as error:
                # None of the request is sent yet, so another connection may carry it.
                logger.debug("the connection of %s carries no streams: %s", peer, error)
                self._drop(connection)
            else:
                self._thread.nursery.start_soon(self._carry, Proposed(stream, protocol), pipe, b"")
                return

    async def reserve(self, relay: str, place: HostPort) -> float:
        """Reserve a slot at a relay; return its seconds. Raises as :meth:`dial`."""
        await self.dial(relay, place)
        # The relay may forward a connection before this node reads its answer.
        self._relays[relay] = muxed = self._connections.best(relay).muxed
        return await relays.reserve_on(muxed)

    async def relayed_by(self, relay: str) -> bool:
        """Return whether the connection with a relay's reservation is still open."""
        muxed = self._relays.get(relay)
        return any(conn.muxed is muxed for conn in self._connections.of(relay))

    async def disconnect(self, peer: str) -> None:
        for connection in self._connections.of(peer):
            await connection.muxed.close()

    async def _wire(self, peer: str, place: HostPort) -> Wire | Circuit:
        if place.relay:
            if not self._connections.of(place.relay):
                raise ConnectionError("its relay is not connected")
            return await relays.connected(self._connections.best(place.relay).muxed, peer)
        try:
            tcp = await trio.open_tcp_stream(place.host, place.port)
        except OSError as error:
            raise ConnectionError(_first_cause(error)) from error
        keep_alive(tcp)
        return Wire(tcp)

    async def _accepted(self, tcp: trio.SocketStream) -> None:
        try:
            host, port = tcp.socket.getpeername()[:2]
            keep_alive(tcp)
        except OSError:
            return  # already closed
        # Wait until it ends, because trio closes the connection when its handler returns.
        await self._take_over(Wire(tcp), HostPort("ip6" if ":" in host else "ip4", host, port))

    async def _brought(self, relay: str, stream: Stream, source: Source) -> None:
        conns = self._connections.of(relay)
        wanted = relay in self._relays and bool(conns)
        with trio.fail_after(NEGOTIATION_SECONDS):
            wire = await relays.brought(stream, source, wanted=wanted)
        if wire is not None and conns:
            await self._take_over(wire, replace(conns[-1].place, relay=relay))

    async def _take_over(self, wire: Wire | Circuit, place: HostPort) -> None:
        half_open = self._half_open.total()
        if half_open >= (MAX_HALF_OPEN if self._half_open[place.source] else MOST_HALF_OPEN):
            await end(wire.close)
            return self._refuse("half_open")
        self._half_open[place.source] += 1
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                muxed = await self._upgrade(wire, None)
        except (OSError, EOFError, ValueError, trio.TooSlowError) as error:
            self._counters.add("connections_broken")
            logger.debug("a connection from %s: %s", place, error)
            return None
        finally:
            self._half_open -= Counter((place.source,))  # without counts of zero
        return await self._hold(Connection(muxed, place, dialed=False))

    async def _upgrade(self, wire: Wire | Circuit, peer: str | None) -> Muxed:
        try:
            return await self.stack.upgrade(wire, peer)
        except BaseException:
            await end(wire.close)
            raise

    async def _hold(self, connection: Connection, task_status: Any = None) -> None:
        """Run a connection until it ends; ``task_status`` is that of trio's ``start``."""
        muxed = connection.muxed
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(muxed.run)
                await muxed.opened()
                self._admit(connection)
                if task_status is not None:
                    task_status.started()
                while (stream := await muxed.take()) is not None:
                    nursery.start_soon(self._take, muxed.peer, stream)
                # Handlers of its streams may still run, but no new stream may use this connection.
                self._connections.remove(connection)
        except* Exception as errors:  # noqa: BLE001 - whatever a stranger sent
            logger.debug("the connection of %s: %r", muxed.peer, errors.exceptions)
        finally:
            if muxed.refused:
                self._refuse("over_bounds")
            self._connections.remove(connection)
            await end(muxed.close)

    def _admit(self, connection: Connection) -> None:
        """Add a connection; over a limit, close the oldest of the peer or busiest source."""
        peer = connection.muxed.peer
        self._connections.add(connection)
        self._thread.post_back(self.on_connection, peer)
        conns = self._connections.of(peer)
        if len(conns) > MAX_OF_PEER:
            self._refuse("of_peer")
            self._drop(conns[0])
        elif len(self._connections) > MAX_CONNECTIONS:
            self._refuse("of_all")
            self._drop(self._connections.most_common())

    def _drop(self, connection: Connection) -> None:
        """Remove a connection; close it in the background, because that may block."""
        self._connections.remove(connection)
        self._thread.nursery.start_soon(end, connection.muxed.close)

    async def _take(self, peer: str, stream: Stream) -> None:
        source = Source(stream)
        try:
            with trio.fail_after(NEGOTIATION_SECONDS):
                protocol = await accept(source.read, stream.write, self._spoken)
            if protocol == relays.STOP:
                await self._brought(peer, stream, source)
                return
        except (OSError, EOFError, ValueError, trio.TooSlowError) as error:
            logger.debug("a stream of %s: %s", peer, error)
            await end(stream.reset)
            return
        pipe = Pipe(self._thread)
        self._thread.post_back(self._incoming, peer, protocol, pipe)
        await self._carry(stream, pipe, source.rest)

    async def _carry(self, stream: Stream | Proposed, pipe: Pipe, initial: bytes) -> None:
        try:
            await pipe.run(stream, initial)
        except Exception:
            self._counters.add("transport_failures")
            logger.exception("a stream failed")

    def _refuse(self, bound: str) -> None:
        self._counters.add("connections_over_bound", bound=bound)
