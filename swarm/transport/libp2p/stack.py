"""What makes a TCP connection one of libp2p: the only file that imports libp2p.

Noise and yamux of the package, and bounds around them: its yamux takes any number of streams and
of bytes from whoever ignores its windows.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Container
from importlib.util import find_spec
from typing import Any

from protocol.identity import Identity
from swarm.transport.node import DaemonFailed
from swarm.transport.streams import varint

HEADER = "/multistream/1.0.0"
NOT_SPOKEN = "na"
MAX_LINE = 1024
MAX_PROPOSALS = 16

Read = Callable[[int], Awaitable[bytes]]
"""Exactly so many bytes; raises ``EOFError`` or ``OSError`` where they do not come."""

Write = Callable[[bytes], Awaitable[object]]


class NotSpoken(ValueError):  # noqa: N818
    """The other side does not speak the protocol, or no multistream at all."""


async def propose(read: Read, write: Write, protocol: str) -> None:
    """Ask for one protocol and wait until it is agreed on.

    Raises:
        NotSpoken
    """
    await write(proposal(protocol))
    await agreed(read, protocol)


def proposal(protocol: str) -> bytes:
    """What asks for one protocol, in one piece with the header."""
    return _line(HEADER) + _line(protocol)


async def agreed(read: Read, protocol: str) -> None:
    """Read what answers a proposal.

    Raises:
        NotSpoken
    """
    if (header := await _read_line(read)) != HEADER:
        raise NotSpoken(f"it begins with {header!r}")
    if await _read_line(read) != protocol:
        raise NotSpoken(f"it does not speak {protocol}")


async def accept(read: Read, write: Write, spoken: Container[str]) -> str:
    """The first protocol proposed that is among ``spoken``.

    Raises:
        NotSpoken
    """
    if (header := await _read_line(read)) != HEADER:
        raise NotSpoken(f"it begins with {header!r}")
    await write(_line(HEADER))
    for _ in range(MAX_PROPOSALS):
        protocol = await _read_line(read)
        if protocol in spoken:
            await write(_line(protocol))
            return protocol
        await write(_line(NOT_SPOKEN))
    raise NotSpoken(f"none of {MAX_PROPOSALS} protocols proposed is spoken here")


def _line(text: str) -> bytes:
    data = text.encode() + b"\n"
    return varint(len(data)) + data


async def _read_line(read: Read) -> str:
    size = shift = 0
    while True:
        (byte,) = await read(1)
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
        if shift > 14:
            raise NotSpoken("a line without end")
    if not 1 <= size <= MAX_LINE:
        raise NotSpoken(f"a line of {size} bytes")
    line = await read(size)
    if not line.endswith(b"\n"):
        raise NotSpoken("a line without its end")
    return line[:-1].decode(errors="replace")


SECURITY = "/noise"
MUXER = "/yamux/1.0.0"
MAX_FRAME = 1 << 20
"""Bytes of a frame."""

MAX_UNREAD = 8 << 20
"""Bytes that wait for their readers on all streams of a connection."""

MAX_STREAMS = 512
"""Of one connection at a time; each waits for a place of its protocol."""

WINDOW = 1 << 18
"""Bytes that a side may be ahead of the other's reader on a stream (yamux)."""

WAIT_SECONDS = 0.01


def check_library() -> None:
    """Look for the package.

    Raises:
        DaemonFailed: it is not there, or cannot be loaded beside what is.
    """
    if "hivemind" in sys.modules:
        raise DaemonFailed(
            "libp2p and hivemind cannot run in one process, as their protobuf messages collide; "
            "give each a process of its own"
        )
    if find_spec("libp2p") is None:
        raise DaemonFailed("libp2p is not installed; run pip install 'swarm-node[libp2p]'")


class OverBounds(ConnectionError):  # noqa: N818
    """A peer sent more, or opened more streams, than it was allowed to."""


class Stack:
    """Secures and multiplexes connections under one identity."""

    def __init__(self, identity: Identity) -> None:
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.crypto.x25519 import create_new_key_pair as create_noise_keys
        from libp2p.security.noise.transport import Transport
        from libp2p.stream_muxer.yamux import yamux

        # The package logs what any stranger does, at every level.
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
        yamux.MAX_WINDOW_SIZE = MAX_FRAME
        keys = create_new_key_pair(identity.export()[4:36])
        self.public_key: bytes = keys.public_key.serialize()
        self._noise = Transport(keys, create_noise_keys().private_key)

    async def upgrade(self, wire: Any, peer: str | None) -> Muxed:
        """Secure a fresh connection to ``peer``, or from somebody (None), and multiplex it.

        Args:
            wire: a :class:`swarm.transport.libp2p.host.Wire` or what reads and writes like one.

        Raises:
            OSError, EOFError, NotSpoken: it broke, or is none of libp2p.
            ConnectionError: somebody else answers.
        """
        from libp2p.network.connection.raw_connection import RawConnection
        from libp2p.peer.id import ID
        from libp2p.stream_muxer.yamux.yamux import Yamux

        # They are what is asked for but for methods that nobody calls.
        raw: Any = RawConnection(wire, initiator=peer is not None)
        try:
            if peer is not None:
                await propose(_exactly(raw), raw.write, SECURITY)
                secure = await self._noise.secure_outbound(raw, ID.from_string(peer))
            else:
                await accept(_exactly(raw), raw.write, (SECURITY,))
                secure = await self._noise.secure_inbound(raw)
            known = str(secure.get_remote_peer())
            if peer is not None and known != peer:
                raise ConnectionError(f"{known} answers there")
            guarded: Any = Guarded(secure)
            if peer is not None:
                await propose(_exactly(guarded), guarded.write, MUXER)
            else:
                await accept(_exactly(guarded), guarded.write, (MUXER,))
        except (OSError, EOFError, ValueError):
            raise
        except Exception as error:
            raise ConnectionError(
                f"no secure connection: {error or type(error).__name__}"
            ) from error
        guarded.muxer = Yamux(guarded, secure.get_remote_peer(), is_initiator=peer is not None)
        return Muxed(guarded, known)


class Guarded:
    """A secured connection that ends where its muxer holds more than it should."""

    def __init__(self, secure: Any) -> None:
        self._secure = secure
        self.muxer: Any = None
        self.refused = False
        self.is_initiator = secure.is_initiator

    async def read(self, n: int) -> bytes:
        """``n`` bytes; raises :class:`OverBounds`."""
        streams = () if self.muxer is None else self.muxer.streams
        waiting = 0 if self.muxer is None else unread(self.muxer)
        if n > MAX_FRAME or len(streams) > MAX_STREAMS or waiting > MAX_UNREAD:
            self.refused = True
            raise OverBounds(f"frame {n}, streams {len(streams)}, unread {waiting}")
        data: bytes = await self._secure.read(n)
        return data

    async def write(self, data: bytes) -> None:
        await self._secure.write(data)

    async def close(self) -> None:
        await self._secure.close()


class Muxed:
    """A secured connection that carries streams.

    Attributes:
        peer: PeerID of the other side, proved by its key.
    """

    def __init__(self, guarded: Guarded, peer: str) -> None:
        self._guarded = guarded
        self._muxer = guarded.muxer
        self.peer = peer

    @property
    def refused(self) -> bool:
        """Whether the connection ended as it went over its bounds."""
        return self._guarded.refused

    async def run(self) -> None:
        """Carry streams until either side closes the connection."""
        await self._muxer.start()

    async def opened(self) -> None:
        """Return once :meth:`run` is ready for streams."""
        await self._muxer.event_started.wait()

    async def open(self) -> Stream:
        """A new stream.

        Raises:
            OSError: the connection is gone.
        """
        try:
            return Stream(await self._muxer.open_stream())
        except Exception as error:
            raise ConnectionError(f"no stream: {error}") from error

    async def take(self) -> Stream | None:
        """The next stream that the other side opens; None at the end of the connection."""
        from libp2p.stream_muxer.exceptions import MuxedConnUnavailable

        try:
            return Stream(await self._muxer.accept_stream())
        except MuxedConnUnavailable:
            return None

    async def close(self) -> None:
        """End the connection and its streams."""
        await self._muxer.close()


class Stream:
    """One stream of a connection."""

    def __init__(self, muxed: Any) -> None:
        self._muxed = muxed
        self._taken = 0

    async def read(self, most: int) -> bytes:
        """What has come, at most so many bytes; empty at the end.

        Raises:
            ConnectionError: the other side reset it, or the connection is gone.
        """
        from libp2p.stream_muxer.exceptions import MuxedStreamEOF

        try:
            data = bytes(await self._muxed.conn.read_stream(self._muxed.stream_id, most))
            await self._grant(len(data))
            return data
        except MuxedStreamEOF:
            if self._muxed.conn.event_shutting_down.is_set():
                raise ConnectionResetError("the connection is gone") from None
            return b""
        except Exception as error:
            raise ConnectionResetError("reset by the other side") from error

    async def _grant(self, taken: int) -> None:
        """Let the other side send on, once half of its window is used up.

        The muxer's own way grants after every read, and more than was taken.
        """
        self._taken += taken
        if self._taken >= WINDOW // 2:
            taken, self._taken = self._taken, 0
            self._muxed.recv_window += taken
            await self._muxed.send_window_update(taken)

    async def write(self, data: bytes) -> None:
        """Send all of it, however slowly the other side takes it; the caller has the patience.

        Raises:
            ConnectionError: as for :meth:`read`.
        """
        import trio

        view = memoryview(data)
        while view:
            while not (window := self._muxed.send_window):
                if self._muxed.closed or self._muxed.conn.event_shutting_down.is_set():
                    raise ConnectionResetError("reset by the other side")
                # The muxer wakes nobody up, and gives up itself after five seconds.
                await trio.sleep(WAIT_SECONDS)
            try:
                await self._muxed.write(bytes(view[:window]))
            except Exception as error:
                raise ConnectionResetError(f"not written: {error}") from error
            view = view[window:]

    async def close(self) -> None:
        """End this side."""
        await self._muxed.close()

    async def reset(self) -> None:
        """End both sides."""
        await self._muxed.reset()


def unread(muxer: Any) -> int:
    """Bytes that wait on all streams of a muxer."""
    return sum(map(len, muxer.stream_buffers.values()))


def _exactly(source: Any) -> Any:
    async def read(n: int) -> bytes:
        found = b""
        while len(found) < n:
            chunk = await source.read(n - len(found))
            if not chunk:
                raise EOFError("it hung up")
            found += chunk
        return found

    return read


def address_bytes(address: str) -> bytes:
    """A multiaddress as it goes over the wire; raises ``ValueError``."""
    from multiaddr import Multiaddr

    return bytes(Multiaddr(address).to_bytes())


def address_text(data: bytes) -> str | None:
    """A multiaddress in words; None where it is none, or of a kind that is not known here."""
    from multiaddr import Multiaddr
    from multiaddr.exceptions import Error

    try:
        return str(Multiaddr(data))
    except (Error, ValueError, TypeError, KeyError, IndexError, EOFError):
        return None


logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 1.0


async def end(how: Callable[[], Awaitable[object]]) -> None:
    """End something by ``how``, which may fail: it is gone in any case. On trio's thread."""
    import trio

    with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_SECONDS):
        try:
            await how()
        except Exception as error:  # noqa: BLE001 - of a library about a connection that is gone
            logger.debug("ending a connection or stream: %r", error)
