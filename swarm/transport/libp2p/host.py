"""Connections and streams of one identity, on trio's thread.

Nothing is believed of a connection until Noise has shown whose it is, and none is kept that costs
more than its share: half-open ones, those of one address and of one peer, and all together are
bounded.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import Place
from swarm.transport.libp2p.bridge import (
    NEGOTIATION_SECONDS,
    Carried,
    Pipe,
    Proposed,
    Source,
    TrioThread,
)
from swarm.transport.libp2p.relays import STOP, Circuit, brought, connected, reserve_on
from swarm.transport.libp2p.stack import Muxed, Stack, Stream, accept, end, proposal

if TYPE_CHECKING:
    import trio


class Connection:
    """One connection, where it came from or goes to, and whether it was taken or dialled."""

    def __init__(self, muxed: Muxed, place: Place, *, dialled: bool) -> None:
        self.muxed = muxed
        self.place = place
        self.dialled = dialled


class Connections:
    """Those that carry streams, by peer, in the order in which they came."""

    def __init__(self) -> None:
        self._held: dict[str, list[Connection]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, peer: str) -> tuple[Connection, ...]:
        """Those with one peer, the oldest first."""
        return tuple(self._held.get(peer, ()))

    def places(self) -> dict[str, tuple[Place, ...]]:
        """Where each comes from or goes to, by peer id."""
        return {peer: tuple(each.place for each in held) for peer, held in self._held.items()}

    def best(self, peer: str) -> Connection | None:
        """The latest with a peer, a direct one where there is any."""
        held = self.of(peer)
        direct = [connection for connection in held if not connection.place.relay]
        return next(reversed(direct or held), None)

    def add(self, connection: Connection) -> None:
        """Note one that can carry streams."""
        self._held.setdefault(connection.muxed.peer, []).append(connection)

    def remove(self, connection: Connection) -> None:
        """Forget one that cannot any more, if it is known."""
        peer = connection.muxed.peer
        held = [each for each in self._held.pop(peer, ()) if each is not connection]
        if held:
            self._held[peer] = held

    def most_common(self) -> Connection:
        """The oldest that was taken from whoever has most; raises ``ValueError`` where none was."""
        taken = [each for held in self._held.values() for each in held if not each.dialled]
        sources = Counter(each.place.source for each in taken)
        return max(taken, key=lambda each: sources[each.place.source])


KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


async def reach(place: Place) -> trio.SocketStream:
    """A connection to a port.

    Raises:
        ConnectionError: with the system's word for the cause.
    """
    import trio

    try:
        return await trio.open_tcp_stream(place.host, place.port)
    except OSError as error:
        raise ConnectionError(_first_cause(error)) from error


def comes_from(tcp: trio.SocketStream) -> Place:
    """Where a connection comes from; raises ``OSError`` where it is gone already."""
    host, port = tcp.socket.getpeername()[:2]
    return Place("ip6" if ":" in host else "ip4", host, port)


def keep_alive(tcp: trio.SocketStream) -> None:
    """Have the system notice within a minute that the other side is gone without a word."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _first_cause(error: BaseException) -> str:
    """The system's word in what trio makes of it."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return _first_cause(cause.exceptions[0])
    return _first_cause(cause) if cause else getattr(error, "strerror", None) or str(error)


WIRE_BYTES = 1 << 16


class Wire:
    """Reads in large pieces what the package asks for two bytes at a time."""

    def __init__(self, tcp: trio.SocketStream) -> None:
        self._tcp = tcp
        self._unread = b""

    async def read(self, n: int | None = None) -> bytes:
        """At most ``n`` bytes; empty at the end."""
        import trio

        if not self._unread:
            try:
                self._unread = bytes(await self._tcp.receive_some(WIRE_BYTES))
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return b""
        data, self._unread = self._unread[:n], self._unread[n:] if n is not None else b""
        return data

    async def write(self, data: bytes) -> None:
        """Send all of it."""
        import trio

        try:
            await self._tcp.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionResetError("the connection is gone") from error

    async def close(self) -> None:
        await self._tcp.aclose()

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: whoever made the connection knows where it leads."""
        return None


logger = logging.getLogger(__name__)

UPGRADE_SECONDS = 5.0
MAX_HALF_OPEN = 64
MOST_HALF_OPEN = 512
"""With those of hosts that have no other one; what a relay brings comes from one host."""

MAX_CONNECTIONS = 512
MAX_OF_PEER = 4
BACKLOG = 128

Incoming = Callable[[str, str, Pipe], None]
"""Takes (peer id, protocol, pipe) of a stream that somebody opened; called on asyncio's loop."""


class Host:
    """Listens, dials, and carries streams. All methods but the constructor are trio's."""

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
        self.on_connection: Callable[[str], None] = lambda peer: None

    def speak(self, protocol: str) -> None:
        """Take streams of a protocol."""
        self._spoken.add(protocol)

    async def listen(self, host: str, port: int) -> int:
        """Take connections; the port, drawn where it was 0.

        Raises:
            OSError
        """
        import trio

        (listener,) = await trio.open_tcp_listeners(port, host=host, backlog=BACKLOG)
        assert self._thread.nursery is not None
        self._thread.nursery.start_soon(trio.serve_listeners, self._accepted, [listener])
        return int(listener.socket.getsockname()[1])

    async def connected(self) -> dict[str, tuple[Place, ...]]:
        """Where each connection comes from or goes to, by peer id."""
        return self._connections.places()

    async def spoken(self) -> tuple[str, ...]:
        """The protocols of which streams are taken."""
        return tuple(sorted(self._spoken))

    async def dial(self, peer: str, place: Place) -> None:
        """Connect to a peer, if it is not connected.

        Raises:
            OSError, EOFError, ValueError: it does not answer there.
        """
        import trio

        if self._connections.of(peer):
            return
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                muxed = await self._upgrade(await self._wire(peer, place), peer)
        except trio.TooSlowError:
            raise ConnectionError(f"no answer within {UPGRADE_SECONDS:g} s") from None
        assert self._thread.nursery is not None
        await self._thread.nursery.start(self._hold, Connection(muxed, place, dialled=True))

    async def open(self, peer: str, protocol: str, pipe: Pipe) -> None:
        """Open a stream to a connected peer and let ``pipe`` carry it, once the peer takes it.

        Nobody waits for that, so that a request goes out with the proposal.

        Raises:
            LookupError: it is not connected.
        """
        assert self._thread.nursery is not None
        while True:
            connection = self._best(peer)
            try:
                stream = await connection.muxed.open()
                await stream.write(proposal(protocol))
            except OSError as error:
                # Nothing of the request has gone: another connection may carry it.
                logger.debug("the connection of %s carries no streams: %s", peer, error)
                self._connections.remove(connection)
                self._thread.nursery.start_soon(end, connection.muxed.close)
            else:
                carried = Proposed(stream, protocol)
                self._thread.nursery.start_soon(self._carry, carried, pipe, b"")
                return

    async def reserve(self, relay: str, place: Place) -> float:
        """Have a peer relay for this node, dialled first where need be; for how many seconds.

        Raises:
            OSError, EOFError, ValueError: it does not.
        """
        await self.dial(relay, place)
        # It may bring somebody before its answer is read.
        self._relays[relay] = muxed = self._best(relay).muxed
        return await reserve_on(muxed)

    async def relayed_by(self) -> tuple[str, ...]:
        """The peers asked to relay whose connection has been there ever since."""
        return tuple(
            relay
            for relay, muxed in self._relays.items()
            if any(each.muxed is muxed for each in self._connections.of(relay))
        )

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer."""
        for connection in self._connections.of(peer):
            await connection.muxed.close()

    def _best(self, peer: str) -> Connection:
        connection = self._connections.best(peer)
        if connection is None:
            raise LookupError(peer)
        return connection

    async def _wire(self, peer: str, place: Place) -> Wire | Circuit:
        if place.relay:
            await self.dial(place.relay, place.of_relay())
            return await connected(self._best(place.relay).muxed, peer)
        tcp = await reach(place)
        keep_alive(tcp)
        return Wire(tcp)

    async def _accepted(self, tcp: trio.SocketStream) -> None:
        try:
            place = comes_from(tcp)
            keep_alive(tcp)
        except OSError:
            return  # gone before it was looked at
        # Until it ends: trio closes what its handler returns from.
        await self._take_over(Wire(tcp), place)

    async def _brought(self, relay: str, stream: Stream, source: Source) -> None:
        """Take the connection that a relay of this node's brings."""
        import trio

        held = self._connections.of(relay)
        wanted = relay in self._relays and bool(held)
        with trio.fail_after(NEGOTIATION_SECONDS):
            wire = await brought(stream, source, wanted=wanted)
        if wire is not None and held:
            await self._take_over(wire, replace(held[-1].place, relay=relay))

    async def _take_over(self, wire: Wire | Circuit, place: Place) -> None:
        """Secure a connection that somebody made, and carry it until it ends."""
        import trio

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
            self._half_open[place.source] -= 1
            if not self._half_open[place.source]:
                del self._half_open[place.source]
        return await self._hold(Connection(muxed, place, dialled=False))

    async def _upgrade(self, wire: Wire | Circuit, peer: str | None) -> Muxed:
        try:
            return await self.stack.upgrade(wire, peer)
        except BaseException:
            await end(wire.close)
            raise

    async def _hold(self, connection: Connection, task_status: Any = None) -> None:
        """Carry a connection and take its streams, until it ends; trio's ``start`` has a status."""
        import trio

        muxed = connection.muxed
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(muxed.run)
                await muxed.opened()
                await self._admit(connection)
                if task_status is not None:
                    task_status.started()
                while (stream := await muxed.take()) is not None:
                    nursery.start_soon(self._take, muxed.peer, stream)
                # Those who serve its streams may still be at it, and nobody is to open another.
                self._connections.remove(connection)
        except* Exception as errors:  # noqa: BLE001 - whatever a stranger sent
            logger.debug("the connection of %s: %r", muxed.peer, errors.exceptions)
        finally:
            if muxed.refused:
                self._refuse("over_bounds")
            self._connections.remove(connection)
            await end(muxed.close)

    async def _admit(self, connection: Connection) -> None:
        """List a connection; of a peer with too many, and of all, the oldest of whom has most."""
        peer = connection.muxed.peer
        self._connections.add(connection)
        self._thread.tell(self.on_connection, peer)
        held = self._connections.of(peer)
        if len(held) > MAX_OF_PEER:
            self._refuse("of_peer")
            await held[0].muxed.close()
        elif len(self._connections) > MAX_CONNECTIONS:
            self._refuse("of_all")
            await self._connections.most_common().muxed.close()

    async def _take(self, peer: str, stream: Stream) -> None:
        import trio

        source = Source(stream)
        try:
            with trio.fail_after(NEGOTIATION_SECONDS):
                protocol = await accept(source.read, stream.write, self._spoken)
            if protocol == STOP:
                await self._brought(peer, stream, source)
                return
        except (OSError, EOFError, ValueError, trio.TooSlowError) as error:
            logger.debug("a stream of %s: %s", peer, error)
            await end(stream.reset)
            return
        pipe = Pipe(self._thread)
        self._thread.tell(self._incoming, peer, protocol, pipe)
        await self._carry(stream, pipe, source.rest)

    async def _carry(self, stream: Carried, pipe: Pipe, begun: bytes) -> None:
        try:
            await pipe.run(stream, begun)
        except Exception:
            self._counters.add("transport_failures")
            logger.exception("a stream failed")

    def _refuse(self, bound: str) -> None:
        self._counters.add("connections_over_bound", bound=bound)
