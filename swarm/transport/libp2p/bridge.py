"""A trio thread called from asyncio, and streams that connect both event loops.

Trio's side sends and receives. Asyncio's side is an ordinary stream reader and writer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

from swarm.transport.libp2p.stack import Stream, agreed
from swarm.transport.transport import PeerUnreachable

logger = logging.getLogger(__name__)

CHUNK = 1 << 16
AHEAD = 1 << 18  # maximum bytes on their way to asyncio's side
# Time for a slow peer to read one window and end its side; a reset discards unread bytes.
LINGER_SECONDS = 75.0
NEGOTIATION_SECONDS = 3.0


class TrioThread:
    """A trio loop in a thread, called from the asyncio loop that created it.

    ``ended`` is done with the reason once the thread has ended.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started: asyncio.Future[Any] = self._loop.create_future()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._calls: set[asyncio.Future[Any]] = set()
        self._token: trio.lowlevel.TrioToken  # this and the nursery from :meth:`start` on
        self.nursery: trio.Nursery

    async def start(self) -> None:
        """Start the thread, which runs until :meth:`stop`; raises ``PeerUnreachable``."""
        self._thread.start()
        await self._started

    def end(self) -> None:
        self.post(self.nursery.cancel_scope.cancel)

    async def stop(self) -> None:
        """Cancel all tasks on the thread and wait until it has ended."""
        self.end()
        await asyncio.shield(self.ended)
        self._thread.join()  # the thread only has to return

    async def call(self, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """Await ``work`` there, cancelled with the caller; raises ``PeerUnreachable``."""
        if self.ended.done():
            raise PeerUnreachable("the transport is not started")
        future = self._loop.create_future()
        self._calls.add(future)
        scope = trio.CancelScope()

        async def run() -> None:
            with scope:
                try:
                    self.post_back(_settle, future, await work(*args), None)
                except Exception as error:  # noqa: BLE001 - raised again by the caller
                    self.post_back(_settle, future, None, error)

        try:
            self.post(self.nursery.start_soon, run)
            return await future
        except asyncio.CancelledError:
            self.post(scope.cancel)
            raise
        finally:
            self._calls.discard(future)

    def post(self, work: Callable[..., object], *args: Any) -> None:
        """Run ``work`` on the thread soon, in posting order; dropped after its end."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(work, *args)

    def post_back(self, work: Callable[..., object], *args: Any) -> None:
        """Run ``work`` on the asyncio loop soon, in calling order; for the trio thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work, *args)

    def _run(self) -> None:
        reason = "the network's thread was stopped"
        try:
            trio.run(self._main)
        except BaseException as error:  # passed to the thread's supervisor
            reason = f"the network's thread ended with {error!r}"
            logger.exception("the network's thread failed")
        finally:
            self.post_back(self._finish, reason)

    async def _main(self) -> None:
        async with trio.open_nursery() as self.nursery:
            self._token = trio.lowlevel.current_trio_token()
            self.post_back(self._started.set_result, None)
            await trio.sleep_forever()

    def _finish(self, reason: str) -> None:
        for future in (self._started, *self._calls):
            _settle(future, None, PeerUnreachable(reason))
        self.ended.set_result(reason)


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


class Pipe:
    """Trio's side: :meth:`run` runs on trio's thread, other methods by posting."""

    def __init__(self, thread: TrioThread) -> None:
        self._thread = thread
        self._bridge: Bridge | None = None
        self._chunks: deque[bytes] = deque()
        self._ahead = 0
        self._finished = False
        self._aborted = False
        self._wake = trio.Event()

    def attach(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._wake.set()

    def send(self, data: bytes) -> None:
        self._chunks.append(data)
        self._wake.set()

    def taken(self, count: int) -> None:
        """Note that asyncio's side has consumed bytes."""
        self._ahead -= count
        self._wake.set()

    def finish(self) -> None:
        """Close this side after sending all bytes."""
        self._finished = True
        self._wake.set()

    def abort(self) -> None:
        """Close both sides immediately."""
        self._aborted = True
        self._wake.set()

    async def run(self, stream: Stream | Proposed, begun: bytes) -> None:
        """Carry bytes both ways until both sides end; ``begun`` is already read."""
        clean = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_abort, nursery.cancel_scope)
                eof = trio.Event()
                nursery.start_soon(self._receive, stream, begun, eof)
                await self._send_all(stream)
                with trio.move_on_after(LINGER_SECONDS):
                    await eof.wait()
                    clean = True
                nursery.cancel_scope.cancel()
        except* ConnectionError as errors:
            self._report_lost(ConnectionResetError(str(errors.exceptions[0])))
        finally:
            if not clean:
                with trio.CancelScope(shield=True), trio.move_on_after(1.0):
                    await stream.reset()
            self._report_lost(None)

    async def _send_all(self, stream: Stream | Proposed) -> None:
        while True:
            await self._until(lambda: self._chunks or self._finished)
            if not self._chunks:
                break
            data = self._chunks.popleft()
            await stream.write(data)
            if self._bridge is not None:
                self._thread.post_back(self._bridge.sent, len(data))
        await stream.close()

    async def _receive(self, stream: Stream | Proposed, initial: bytes, eof: trio.Event) -> None:
        await self._until(lambda: self._bridge is not None)
        bridge = self._bridge
        assert bridge is not None
        data = initial or await stream.read(CHUNK)
        while data:
            self._ahead += len(data)
            self._thread.post_back(bridge.received, data)
            await self._until(lambda: self._ahead < AHEAD)
            data = await stream.read(CHUNK)
        self._thread.post_back(bridge.received, b"")
        eof.set()

    async def _watch_abort(self, scope: trio.CancelScope) -> None:
        await self._until(lambda: self._aborted)
        scope.cancel()

    async def _until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition, which is checked after each change of this pipe.

        A trio event cannot be cleared, so the first waiter that resumes replaces it for all.
        """
        while not condition():
            if self._wake.is_set():
                self._wake = trio.Event()
            await self._wake.wait()

    def _report_lost(self, error: Exception | None) -> None:
        if self._bridge is not None:
            self._thread.post_back(self._bridge.lost, error)


class Bridge(asyncio.Transport):
    """Asyncio's side of a pipe, as reader and writer; closing discards unsent bytes."""

    def __init__(self, thread: TrioThread, pipe: Pipe) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self._thread = thread
        self._pipe = pipe
        self._unsent = 0
        self._high = CHUNK
        self._full = False
        self._withheld = 0
        self._paused = False
        self._closing = False
        self._gone = False
        self.reader = asyncio.StreamReader(limit=CHUNK, loop=loop)
        self._protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        self._protocol.connection_made(self)
        self.writer = asyncio.StreamWriter(self, self._protocol, self.reader, loop)
        thread.post(pipe.attach, self)

    def received(self, data: bytes) -> None:
        """Take incoming bytes; empty means that the other side has ended."""
        if self._gone:
            return
        if not data:
            self._protocol.eof_received()
            return
        self._protocol.data_received(data)
        if self._paused:
            self._withheld += len(data)
        else:
            self._thread.post(self._pipe.taken, len(data))

    def sent(self, count: int) -> None:
        self._unsent -= count
        if self._full and self._unsent <= self._high:
            self._full = False
            self._protocol.resume_writing()

    def lost(self, error: Exception | None) -> None:
        if not self._gone:
            self._gone = self._closing = True
            self._protocol.connection_lost(error)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._unsent += len(data)
        self._thread.post(self._pipe.send, bytes(data))
        self._note_full()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = CHUNK if high is None else high
        self._note_full()

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._thread.post(self._pipe.taken, self._withheld)
        self._withheld = 0

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._unsent:
            self.abort()
        elif not self._closing:
            self._closing = True
            self._thread.post(self._pipe.finish)

    def abort(self) -> None:
        self._closing = True
        self._thread.post(self._pipe.abort)

    def _note_full(self) -> None:
        if not self._full and self._unsent > self._high:
            self._full = True
            self._protocol.pause_writing()


class Source:
    """A buffered reader of a stream; ``rest`` is what it has not returned yet."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.rest = b""

    async def read(self, n: int) -> bytes:
        """Return exactly ``n`` bytes; raises ``EOFError`` or ``OSError``."""
        while len(self.rest) < n:
            chunk = await self._stream.read(CHUNK)
            if not chunk:
                raise EOFError("it hung up")
            self.rest += chunk
        data, self.rest = self.rest[:n], self.rest[n:]
        return data


class Proposed:
    """A stream whose other side has not accepted the protocol yet."""

    def __init__(self, stream: Stream, protocol: str) -> None:
        self._stream = stream
        self._source = Source(stream)
        self._protocol = protocol
        self._agreed = False

    async def read(self, most: int) -> bytes:
        """Read; raises ``ConnectionError`` if the peer does not support the protocol."""
        if self._agreed:
            return await self._stream.read(most)
        try:
            with trio.fail_after(NEGOTIATION_SECONDS):
                await agreed(self._source.read, self._protocol)
        except (trio.TooSlowError, EOFError, ConnectionError, ValueError) as error:
            raise ConnectionError(f"no stream: {error or 'no answer'}") from error
        self._agreed = True
        return self._source.rest or await self._stream.read(most)

    async def write(self, data: bytes) -> None:
        """Send bytes; before agreement, a lost connection can mean a refused protocol."""
        try:
            await self._stream.write(data)
        except ConnectionError as error:
            if self._agreed:
                raise
            raise ConnectionError(f"no stream: {error}") from error

    async def close(self) -> None:
        await self._stream.close()

    async def reset(self) -> None:
        await self._stream.reset()
