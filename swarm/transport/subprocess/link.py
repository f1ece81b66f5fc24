"""The transport's child process, and calls both ways over its messages."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import socket
from asyncio import StreamReader, StreamWriter
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

from swarm.common.child_process import ChannelError, Unread, command, options, packed
from swarm.common.util import cancel_all, import_path, in_words
from swarm.transport.transport import Refusal, TransportError

logger = logging.getLogger(__name__)

REFUSAL = "refusal"
INTERNAL = "internal"
CALL, RESULT, FAILURE, CANCEL, NOTE = range(5)

COMMAND = command("swarm.transport.subprocess.child")
CLOSE_SECONDS = 10.0
EXIT_SECONDS = 5.0
CHUNK = 1 << 16
UNSENT = 1 << 20  # bytes that may wait to be sent before notes are dropped


def reported(error: Exception) -> tuple[str, str]:
    """Return the code and text of an error; log an unexpected one with its trace."""
    match error:
        case Refusal():
            return REFUSAL, error.reason
        case TransportError():
            return error.code, str(error)
    logger.error("a call from the other process failed", exc_info=error)
    return INTERNAL, f"{type(error).__name__}: {error}"


def raised(code: str, text: str) -> Exception:
    """Return the error of a code and text, to be raised again."""
    error_type = TransportError.by_code.get(code, TransportError)
    return Refusal(text) if code == REFUSAL else error_type(text)


Methods = Mapping[str, Callable[..., Any]]  # by name; notes are handled in order


class LinkLost(ConnectionError):  # noqa: N818
    """The other side is gone."""


class Link:
    """One end of the byte stream. All methods belong to one event loop."""

    def __init__(self, reader: StreamReader, writer: StreamWriter, methods: Methods) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._lost = False

    async def run(self) -> None:
        """Handle messages until the other side is gone; then end the pending calls."""
        unread = Unread()
        handlers = self._on_call, self._on_result, self._on_failure, self._on_cancel, self._on_note
        try:
            with suppress(ConnectionError):  # same as an end of file
                while chunk := await self._reader.read(CHUNK):
                    unread.add(chunk)
                    while not unread.missing():
                        kind, *arguments = unread.take()
                        handlers[kind](*arguments)
        except ChannelError as error:
            logger.warning("the other process sent an invalid message: %s", error)
        finally:
            self._lost = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(LinkLost("the other process is gone"))
            await cancel_all(self._working.values())
            self._writer.close()

    async def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """Call the other side's ``method``; raise its ``TransportError`` or ``Refusal``.

        Other errors become a ``TransportError``. Raises ``LinkLost`` if no answer can come.
        """
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._send(CALL, number, method, args, options)
            await self._writer.drain()
            return await future
        except asyncio.CancelledError:
            if not self._lost:
                self._send(CANCEL, number)
            raise
        except ConnectionError as error:
            raise LinkLost(str(error)) from error
        finally:
            del self._waiting[number]

    def notify(self, method: str, /, *args: Any, **options: Any) -> bool:
        """Call without an answer; return False if the call is dropped."""
        if self._lost or self._writer.transport.get_write_buffer_size() > UNSENT:
            return False
        self._send(NOTE, method, args, options)
        return True

    def close(self) -> None:
        """Close the stream, which ends :meth:`run` on both sides."""
        self._writer.close()

    def _send(self, *message: Any) -> None:
        if self._lost:
            raise LinkLost("the other process is gone")
        self._writer.write(packed(message))

    def _on_call(self, number: int, *request: Any) -> None:
        task = asyncio.ensure_future(self._answer(number, *request))
        self._working[number] = task
        task.add_done_callback(lambda _: self._working.pop(number))

    def _on_cancel(self, number: int) -> None:
        if number in self._working:
            self._working[number].cancel()

    def _on_note(self, method: str, args: list[Any], options: dict[str, Any]) -> None:
        self._methods[method](*args, **options)

    def _on_result(self, number: int, value: Any) -> None:
        if number in self._waiting and not self._waiting[number].done():
            self._waiting[number].set_result(value)

    def _on_failure(self, number: int, code: str, text: str) -> None:
        if number in self._waiting and not self._waiting[number].done():
            self._waiting[number].set_exception(raised(code, text))

    async def _answer(
        self, number: int, method: str, args: list[Any], options: dict[str, Any]
    ) -> None:
        try:
            value = self._methods[method](*args, **options)
            self._send(RESULT, number, await value if inspect.isawaitable(value) else value)
        except LinkLost:
            return
        except Exception as error:  # noqa: BLE001 - raised again on the other side
            self._send(FAILURE, number, *reported(error))
        await self._writer.drain()


class Process:
    """A running child process, called through ``link``."""

    def __init__(self, child: asyncio.subprocess.Process, link: Link) -> None:
        self.link = link
        self._child = child
        self._running = asyncio.ensure_future(link.run())
        self._complaints = asyncio.ensure_future(self._listen())

    @classmethod
    async def start(cls, methods: Methods) -> Process:
        """Start a child that may call ``methods``."""
        # The child has no work for the threads of libraries that it loads.
        environment = {**os.environ, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}
        parent_end, child_end = socket.socketpair()
        try:
            with child_end:
                child = await asyncio.create_subprocess_exec(
                    *COMMAND, **options(child_end, environment)
                )
            reader, writer = await asyncio.open_unix_connection(sock=parent_end)
        except BaseException:
            parent_end.close()
            raise
        return cls(child, Link(reader, writer, methods))

    async def ended(self) -> str:
        """Wait until the child is gone and return how it ended."""
        await asyncio.shield(self._running)
        return f"ended with {in_words(await self._exit())}"

    async def stop(self) -> None:
        """Ask the child to close its daemon and exit; kill it if needed."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self.link.call("close")
        except (TimeoutError, LinkLost, TransportError) as error:
            logger.warning("the network process did not close: %s", error or "no answer")
        self.link.close()
        await self._exit()
        await self._running

    async def _exit(self) -> int:
        try:
            async with asyncio.timeout(EXIT_SECONDS):
                await self._child.wait()
        except TimeoutError:
            logger.warning("the network process does not end; killing it")
            self._child.kill()
        status = await self._child.wait()
        await self._complaints
        return status

    async def _listen(self) -> None:
        # The child prints only output that bypasses its loggers.
        assert self._child.stderr is not None
        while True:
            try:
                line = await self._child.stderr.readline()
            except ValueError:
                line = b"a line that is too long to be shown\n"
            if not line:
                return
            logger.warning("the network process: %s", line.decode(errors="replace").rstrip())
