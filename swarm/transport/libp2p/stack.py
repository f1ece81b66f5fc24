"""Noise and yamux on a TCP connection: the only file that imports libp2p.

The package's yamux accepts any number of streams, and any number of bytes from a peer that ignores
its windows. :class:`Guarded` bounds both.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable, Container
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import trio

from protocol.identity import Identity
from swarm.transport.node import DaemonFailed
from swarm.transport.protobuf import varint
from swarm.transport.streams import Read, read_varint

logger = logging.getLogger(__name__)

HEADER = "/multistream/1.0.0"
NOT_SPOKEN = "na"
MAX_LINE = 1024
MAX_PROPOSALS = 16
LONGEST_LENGTH = 3  # bytes of the varint before a line
SECURITY = "/noise"
MUXER = "/yamux/1.0.0"
MAX_FRAME = 1 << 20  # bytes
MAX_UNREAD = 8 << 20  # unread bytes on all streams of a connection
MAX_STREAMS = 512  # of a connection at a time; each waits for a slot of its protocol
WINDOW = 1 << 18  # bytes that a sender may be ahead of the stream's reader (yamux)
WAIT_SECONDS = 0.01
PATIENCE_SECONDS = 1.0
WRITE_SECONDS = 30.0  # for a frame to leave; the slowest rate that a peer may have takes 16

Write = Callable[[bytes], Awaitable[object]]


class NotSpoken(ValueError):  # noqa: N818
    """The other side does not support the protocol, or not multistream."""


async def propose(read: Read, write: Write, protocol: str) -> None:
    """Propose one protocol and wait for agreement; raises ``NotSpoken``."""
    await write(proposal(protocol))
    await agreed(read, protocol)


def proposal(protocol: str) -> bytes:
    """Encode the multistream header and a proposal in one piece."""
    return _line(HEADER) + _line(protocol)


async def agreed(read: Read, protocol: str) -> None:
    """Read the answer to a proposal; raises ``NotSpoken``."""
    if (header := await _read_line(read)) != HEADER:
        raise NotSpoken(f"it begins with {header!r}")
    if await _read_line(read) != protocol:
        raise NotSpoken(f"it does not speak {protocol}")


async def accept(read: Read, write: Write, spoken: Container[str]) -> str:
    """Return the first proposed protocol that is in ``spoken``; raises ``NotSpoken``."""
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
    try:
        size = await read_varint(read, LONGEST_LENGTH)
    except ValueError as error:
        raise NotSpoken("a line without end") from error
    if not 1 <= size <= MAX_LINE:
        raise NotSpoken(f"a line of {size} bytes")
    line = await read(size)
    if not line.endswith(b"\n"):
        raise NotSpoken("a line without its end")
    return line[:-1].decode(errors="replace")


def check_library() -> None:
    """Check that libp2p is installed and hivemind not loaded; raises ``DaemonFailed``."""
    if "hivemind" in sys.modules:
        raise DaemonFailed(
            "libp2p and hivemind cannot run in one process, as their protobuf messages collide; "
            "give each a process of its own"
        )
    if find_spec("libp2p") is None:
        raise DaemonFailed("libp2p is not installed; run pip install '.[libp2p]' in the clone")


class Stack:
    """Secures and multiplexes connections under one identity."""

    def __init__(self, identity: Identity) -> None:
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.crypto.x25519 import create_new_key_pair as create_noise_keys
        from libp2p.security.noise.transport import Transport
        from libp2p.stream_muxer.yamux import yamux

        # The package logs every remote error, at every level.
        logging.getLogger("libp2p").setLevel(logging.CRITICAL)
        yamux.MAX_WINDOW_SIZE = MAX_FRAME
        keys = create_new_key_pair(identity.export()[4:36])
        self.public_key: bytes = keys.public_key.serialize()
        self._noise = Transport(keys, create_noise_keys().private_key)

    async def upgrade(self, wire: Any, peer: str | None) -> Muxed:
        """Secure and multiplex a connection to ``peer``, or an incoming one (None).

        ``wire`` is a :class:`swarm.transport.libp2p.host.Wire` or has its methods. Raises
        ``OSError``, ``EOFError`` or ``NotSpoken``, also if another peer answers.
        """
        from libp2p.network.connection.raw_connection import RawConnection
        from libp2p.peer.id import ID
        from libp2p.stream_muxer.yamux.yamux import Yamux

        # These objects lack only methods that are never called.
        raw: Any = RawConnection(wire, initiator=peer is not None)
        try:
            if peer is not None:
                await propose(_exactly(raw), raw.write, SECURITY)
                secure = await self._noise.secure_outbound(raw, ID.from_string(peer))
            else:
                await accept(_exactly(raw), raw.write, (SECURITY,))
                secure = await self._noise.secure_inbound(raw)
            remote_id = str(secure.get_remote_peer())
            if peer is not None and remote_id != peer:
                raise ConnectionError(f"{remote_id} answers there")
            guarded: Any = Guarded(secure)
            if peer is not None:
                await propose(_exactly(guarded), guarded.write, MUXER)
            else:
                await accept(_exactly(guarded), guarded.write, (MUXER,))
        except (OSError, EOFError, ValueError):
            raise
        except Exception as error:
            reason = str(error) or type(error).__name__
            raise ConnectionError(f"no secure connection: {reason}") from error
        guarded.muxer = Yamux(guarded, secure.get_remote_peer(), is_initiator=peer is not None)
        return Muxed(guarded, remote_id)


class Guarded:
    """A secured connection that closes when its muxer holds too much."""

    def __init__(self, secure: Any) -> None:
        self._secure = secure
        self.muxer: Any = None
        self.refused = False
        self.is_initiator = secure.is_initiator

    async def read(self, n: int) -> bytes:
        """Return ``n`` bytes; raises ``ConnectionError`` over a bound."""
        streams, unread = (), 0
        if self.muxer is not None:
            streams = self.muxer.streams
            unread = sum(map(len, self.muxer.stream_buffers.values()))
        if n > MAX_FRAME or len(streams) > MAX_STREAMS or unread > MAX_UNREAD:
            self.refused = True
            raise ConnectionError(f"frame {n}, streams {len(streams)}, unread {unread}")
        return bytes(await self._secure.read(n))

    async def write(self, data: bytes) -> None:
        """Send a whole frame, even if cancelled; raises ``ConnectionError`` if nothing is read.

        Encryption counts frames, so the other side could decrypt none behind an unsent one.
        """
        with trio.move_on_after(WRITE_SECONDS) as scope:
            scope.shield = True
            await self._secure.write(data)
        if scope.cancelled_caught:
            await self.close()
            raise ConnectionResetError("the other side reads nothing")

    async def close(self) -> None:
        await self._secure.close()


class Muxed:
    """A secured connection that carries streams; ``peer`` is proved by its key."""

    def __init__(self, guarded: Guarded, peer: str) -> None:
        self._guarded = guarded
        self._muxer = guarded.muxer
        self.peer = peer

    @property
    def refused(self) -> bool:
        """Whether the connection ended because it exceeded a limit."""
        return self._guarded.refused

    async def run(self) -> None:
        """Carry streams until either side closes the connection."""
        await self._muxer.start()

    async def opened(self) -> None:
        """Wait until :meth:`run` is ready for streams."""
        await self._muxer.event_started.wait()

    async def open(self) -> Stream:
        """Open a stream; raises ``OSError`` if the connection is closed."""
        try:
            return Stream(await self._muxer.open_stream())
        except Exception as error:
            raise ConnectionError(f"no stream: {error}") from error

    async def take(self) -> Stream | None:
        """Return the next incoming stream; None at the end of the connection."""
        from libp2p.stream_muxer.exceptions import MuxedConnUnavailable

        try:
            return Stream(await self._muxer.accept_stream())
        except MuxedConnUnavailable:
            return None

    async def close(self) -> None:
        await self._muxer.close()


class Stream:
    """One stream of a connection."""

    def __init__(self, muxed: Any) -> None:
        self._muxed = muxed
        self._taken = 0

    async def read(self, most: int) -> bytes:
        """Return available bytes, empty at the end; raises ``ConnectionError`` on reset."""
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

    async def _grant(self, count: int) -> None:
        """Extend the sender's window once half is used; the muxer would grant too much."""
        self._taken += count
        if self._taken >= WINDOW // 2:
            count, self._taken = self._taken, 0
            self._muxed.recv_window += count
            await self._muxed.send_window_update(count)

    async def write(self, data: bytes) -> None:
        """Send all bytes, without a timeout; raises ``ConnectionError`` on reset."""
        view = memoryview(data)
        while view:
            while not (window := self._muxed.send_window):
                if self._muxed.closed or self._muxed.conn.event_shutting_down.is_set():
                    raise ConnectionResetError("reset by the other side")
                # The muxer signals no window update, and its own write gives up after five seconds.
                await trio.sleep(WAIT_SECONDS)
            try:
                await self._muxed.write(bytes(view[:window]))
            except Exception as error:
                raise ConnectionResetError(f"not written: {error}") from error
            view = view[window:]

    async def close(self) -> None:
        """Close this side."""
        await self._muxed.close()

    async def reset(self) -> None:
        """Close both sides."""
        await self._muxed.reset()


def _exactly(source: Any) -> Any:
    async def read(n: int) -> bytes:
        data = b""
        while len(data) < n:
            chunk = await source.read(n - len(data))
            if not chunk:
                raise EOFError("it hung up")
            data += chunk
        return data

    return read


@lru_cache(maxsize=4096)
def address_bytes(address: str) -> bytes:
    """Return a multiaddress in binary form; raises ``ValueError``."""
    from multiaddr import Multiaddr

    return bytes(Multiaddr(address).to_bytes())


async def end(how: Callable[[], Awaitable[object]]) -> None:
    """Await ``how`` to close something, ignoring errors; for the trio thread."""
    with trio.CancelScope(shield=True), trio.move_on_after(PATIENCE_SECONDS):
        try:
            await how()
        except Exception as error:  # noqa: BLE001 - of a library about a connection that is gone
            logger.debug("ending a connection or stream: %r", error)
