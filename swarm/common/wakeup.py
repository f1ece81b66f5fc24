"""What one thread does, told to a task on the event loop of another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Wakeup:
    """Set by any thread; while nobody listens that is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self) -> None:
        """Set the event of whoever listens."""
        # Under the lock, so that no loop is called after its listener has gone and it was closed.
        with self._lock:
            if self._listening is not None:
                loop, event = self._listening
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set by :meth:`set` until the block ends.

        Raises:
            RuntimeError: somebody listens already.
        """
        event = asyncio.Event()
        with self._lock:
            if self._listening is not None:
                raise RuntimeError("somebody listens already: a member runs once at a time")
            self._listening = asyncio.get_running_loop(), event
        try:
            yield event
        finally:
            with self._lock:
                self._listening = None
