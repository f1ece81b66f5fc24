"""An asyncio loop on a thread of its own, for the side of a node that talks to the swarm."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from node.errors import NodeError

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS = 15.0


class LoopThread:
    """An asyncio loop that runs on its own thread until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result.

        A wait that is interrupted, by Ctrl-C or by ``timeout``, cancels the work and lasts until
        that has put everything back.

        Raises:
            NodeError: it took longer than ``timeout`` seconds.
        """
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        try:
            return future.result(timeout)
        except BaseException as error:
            if ended.is_set():
                raise
            future.cancel()
            ended.wait(STOP_SECONDS)
            if not isinstance(error, TimeoutError):
                raise
        raise NodeError(
            "the network did not answer within seconds",
            timeout,
            "Raise network.start_timeout, or run: swarm-node doctor.",
        )

    def start(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run a coroutine on the loop in the background."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, action: Any) -> None:
        """Call a plain function on the loop's thread."""
        self._loop.call_soon_threadsafe(action)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        if not self._loop.is_running():
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            self._loop.close()
