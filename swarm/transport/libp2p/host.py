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
from typing import TYPE_CHECKING, Any

from protocol.identity import Identity
from swarm.common.counters import Counters
from swarm.transport.libp2p.addresses import Place
from swarm.transport.libp2p.bridge import Carried, Pipe
from swarm.transport.libp2p.multistream import NotSpoken, accept, proposal
from swarm.transport.libp2p.proposed import NEGOTIATION_SECONDS, Proposed, Source
from swarm.transport.libp2p.stack import Muxed, Stack, Stream
from swarm.transport.libp2p.trio_thread import TrioThread

if TYPE_CHECKING:
    import trio

logger = logging.getLogger(__name__)

UPGRADE_SECONDS = 5.0
MAX_HALF_OPEN = 64
MOST_HALF_OPEN = 512
"""With those of hosts that have no other one."""

MAX_CONNECTIONS = 512
MAX_OF_PEER = 4
BACKLOG = 128
KEEP_ALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}

Incoming = Callable[[str, str, Pipe], None]
"""Takes (peer id, protocol, pipe) of a stream that somebody opened; called on asyncio's loop."""


class Connection:
    """One connection, where it came from or goes to, and whether it was taken or dialled."""

    def __init__(self, muxed: Muxed, place: Place, *, dialled: bool) -> None:
        self.muxed = muxed
        self.place = place
        self.dialled = dialled


class Host:
    """Listens, dials, and carries streams. All methods but the constructor are trio's."""

    def __init__(
        self, identity: Identity, thread: TrioThread, incoming: Incoming, counters: Counters
    ) -> None:
        self.stack = Stack(identity)
        self._thread = thread
        self._incoming = incoming
        self._counters = counters
        self._connections: dict[str, list[Connection]] = {}
        self._half_open: Counter[str] = Counter()
        self._spoken: set[str] = set()
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

    async def connected(self) -> tuple[str, ...]:
        """Whoever is connected, by peer id."""
        return tuple(self._connections)

    async def place(self, peer: str) -> Place | None:
        """Where a connected peer is connected from or to."""
        held = self._connections.get(peer)
        return held[-1].place if held else None

    async def spoken(self) -> tuple[str, ...]:
        """The protocols of which streams are taken."""
        return tuple(sorted(self._spoken))

    async def dial(self, peer: str, place: Place) -> None:
        """Connect to a peer, if it is not connected.

        Raises:
            OSError, EOFError, ValueError: it does not answer there.
        """
        import trio

        if peer in self._connections:
            return
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                tcp = await _reach(place)
                muxed = await self._upgrade(tcp, peer)
        except trio.TooSlowError:
            raise ConnectionError(f"no answer within {UPGRADE_SECONDS:g} s") from None
        assert self._thread.nursery is not None
        await self._thread.nursery.start(self._hold, Connection(muxed, place, dialled=True))

    async def open(self, peer: str, protocol: str, pipe: Pipe) -> None:
        """Open a stream to a connected peer and let ``pipe`` carry it, once the peer takes it.

        Nobody waits for that, so that a request goes out with the proposal.

        Raises:
            LookupError: it is not connected.
            OSError: the connection is gone.
        """
        held = self._connections.get(peer)
        if not held:
            raise LookupError(peer)
        stream = await held[-1].muxed.open()
        await stream.write(proposal(protocol))
        assert self._thread.nursery is not None
        self._thread.nursery.start_soon(self._carry, Proposed(stream, protocol), pipe, b"")

    async def disconnect(self, peer: str) -> None:
        """End all connections with a peer."""
        for connection in list(self._connections.get(peer, ())):
            await connection.muxed.close()

    async def _accepted(self, tcp: trio.SocketStream) -> None:
        import trio

        try:
            place, port = tcp.socket.getpeername()[:2]
        except OSError:
            return None  # gone before it was looked at
        half_open = self._half_open.total()
        if half_open >= (MAX_HALF_OPEN if self._half_open[place] else MOST_HALF_OPEN):
            return self._refuse("half_open")
        self._half_open[place] += 1
        try:
            with trio.fail_after(UPGRADE_SECONDS):
                muxed = await self._upgrade(tcp, None)
        except (OSError, EOFError, ValueError, trio.TooSlowError) as error:
            self._counters.add("connections_broken")
            logger.debug("a connection from %s: %s", place, error)
            return None
        finally:
            self._half_open[place] -= 1
            if not self._half_open[place]:
                del self._half_open[place]
        # Until it ends: trio closes what its handler returns from.
        return await self._hold(Connection(muxed, Place(_kind(place), place, port), dialled=False))

    async def _upgrade(self, tcp: trio.SocketStream, peer: str | None) -> Muxed:
        import trio

        try:
            _keep_alive(tcp)
            return await self.stack.upgrade(tcp, peer)
        except BaseException:
            await trio.aclose_forcefully(tcp)
            raise

    def _most_common(self) -> Connection:
        taken = [c for held in self._connections.values() for c in held if not c.dialled]
        hosts = Counter(connection.place.host for connection in taken)
        return max(taken, key=lambda connection: hosts[connection.place.host])

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
        except* Exception as errors:  # noqa: BLE001 - whatever a stranger sent
            logger.debug("the connection of %s: %r", muxed.peer, errors.exceptions)
        finally:
            self._release(connection)
            await _close(muxed)

    async def _admit(self, connection: Connection) -> None:
        """List a connection; of a peer with too many, and of all, the oldest of whom has most."""
        peer = connection.muxed.peer
        held = self._connections.setdefault(peer, [])
        held.append(connection)
        self._thread.tell(self.on_connection, peer)
        if len(held) > MAX_OF_PEER:
            self._refuse("of_peer")
            await held[0].muxed.close()
        elif sum(map(len, self._connections.values())) > MAX_CONNECTIONS:
            self._refuse("of_all")
            await self._most_common().muxed.close()

    def _release(self, connection: Connection) -> None:
        if connection.muxed.refused:
            self._refuse("over_bounds")
        held = self._connections.get(connection.muxed.peer, [])
        if connection in held:
            held.remove(connection)
        if not held:
            self._connections.pop(connection.muxed.peer, None)

    async def _take(self, peer: str, stream: Stream) -> None:
        import trio

        source = Source(stream)
        try:
            with trio.fail_after(NEGOTIATION_SECONDS):
                protocol = await accept(source.read, stream.write, self._spoken)
        except (OSError, EOFError, NotSpoken, trio.TooSlowError) as error:
            logger.debug("a stream of %s: %s", peer, error)
            await _give_up(stream)
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


def _keep_alive(tcp: trio.SocketStream) -> None:
    """Have the system notice within a minute that the other side is gone without a word."""
    tcp.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEP_ALIVE.items():
        if hasattr(socket, name):
            tcp.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def _close(muxed: Muxed) -> None:
    import trio

    with trio.CancelScope(shield=True), trio.move_on_after(1.0):
        try:
            await muxed.close()
        except Exception as error:  # noqa: BLE001 - it is gone in any case
            logger.debug("closing the connection of %s: %r", muxed.peer, error)


async def _give_up(stream: Stream) -> None:
    import trio

    with trio.CancelScope(shield=True), trio.move_on_after(1.0):
        await stream.reset()


async def _reach(place: Place) -> trio.SocketStream:
    import trio

    try:
        return await trio.open_tcp_stream(place.host, place.port)
    except OSError as error:
        raise ConnectionError(_first_cause(error)) from error


def _first_cause(error: BaseException) -> str:
    """The system's word in what trio makes of it."""
    cause = error.__cause__
    if isinstance(cause, BaseExceptionGroup):
        return _first_cause(cause.exceptions[0])
    return _first_cause(cause) if cause else getattr(error, "strerror", None) or str(error)


def _kind(host: str) -> str:
    return "ip6" if ":" in host else "ip4"
