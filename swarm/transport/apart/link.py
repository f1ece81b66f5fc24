"""Calls both ways between a process and its child: msgpack messages on one byte stream."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any

import msgpack

from swarm.transport.apart.failures import raised, told

CHUNK = 1 << 16
LARGEST = 64 << 20
"""Bytes of a message: the largest frame many times over."""

UNSENT = 1 << 20
"""Bytes that may wait to be sent before notes are dropped."""

CALL, RESULT, FAILURE, CANCEL, NOTE = range(5)

Methods = Mapping[str, Callable[..., Any]]
"""What the other side may call, by name. Notes are handled in the order in which they came."""


class LinkLost(ConnectionError):  # noqa: N818
    """The other side is gone."""


class Link:
    """One end. All methods belong to one event loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, methods: Methods
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._methods = methods
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._working: dict[int, asyncio.Task[None]] = {}
        self._lost = False

    async def run(self) -> None:
        """Handle what comes in until the other side is gone; calls under way end with it."""
        unpacker = msgpack.Unpacker(max_buffer_size=LARGEST)
        take = self._on_call, self._on_result, self._on_failure, self._on_cancel, self._on_note
        try:
            with suppress(ConnectionError):  # as good as an end of file
                while chunk := await self._reader.read(CHUNK):
                    unpacker.feed(chunk)
                    for kind, *rest in unpacker:
                        take[kind](*rest)
        finally:
            self._lost = True
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(LinkLost("the other process is gone"))
            working = list(self._working.values())
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self._writer.close()

    async def call(self, method: str, /, *args: Any, **options: Any) -> Any:
        """What the other side's ``method`` returns.

        Raises:
            LinkLost: it will never answer.
            TransportError, Refusal: as it raised them; anything else as a ``TransportError``.
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

    def tell(self, method: str, /, *args: Any, **options: Any) -> bool:
        """Call without an answer; False when it was dropped, as the other side does not listen."""
        if self._lost or self._writer.transport.get_write_buffer_size() > UNSENT:
            return False
        self._send(NOTE, method, args, options)
        return True

    def close(self) -> None:
        """Hang up; :meth:`run` ends on both sides."""
        self._writer.close()

    def _send(self, *message: Any) -> None:
        if self._lost:
            raise LinkLost("the other process is gone")
        self._writer.write(msgpack.packb(message))

    def _on_call(self, number: int, *asked: Any) -> None:
        task = asyncio.ensure_future(self._answer(number, *asked))
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
            self._send(FAILURE, number, *told(error))
        await self._writer.drain()
