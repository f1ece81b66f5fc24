"""libp2p's event loop, trio, on a thread of its own beside asyncio's."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from swarm.transport.transport import PeerUnreachable

if TYPE_CHECKING:
    import trio

logger = logging.getLogger(__name__)


class TrioThread:
    """A trio loop that is called from the asyncio loop that made it.

    Attributes:
        ended: done with the reason once the thread has come to its end.
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started: asyncio.Future[None] = self._loop.create_future()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._calls: set[asyncio.Future[Any]] = set()
        self._token: trio.lowlevel.TrioToken | None = None
        self.nursery: trio.Nursery | None = None

    async def start(self) -> None:
        """Run until :meth:`stop`."""
        self._thread.start()
        await self._started

    def end(self) -> None:
        """Cancel all that runs there."""
        self.post(self._cancel)

    async def stop(self) -> None:
        """Cancel all that runs there, and wait until it has ended."""
        self.end()
        await asyncio.shield(self.ended)
        self._thread.join()  # nothing runs there any more but its return

    async def call(self, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        """What ``work`` returns there, or raises; cancelled with the caller.

        Raises:
            PeerUnreachable: the thread has ended.
        """
        import trio

        if self.ended.done():
            raise PeerUnreachable("the transport is not started")
        future = self._loop.create_future()
        self._calls.add(future)
        scope = trio.CancelScope()
        try:
            self.post(self._begin, scope, work, args, future)
            return await future
        except asyncio.CancelledError:
            self.post(scope.cancel)
            raise
        finally:
            self._calls.discard(future)

    def post(self, work: Callable[..., object], *args: Any) -> None:
        """Run ``work`` there soon, in the order of posting; dropped once the thread has ended."""
        import trio

        assert self._token is not None, "start comes first"
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(work, *args)

    def stand_still(self, seconds: float) -> None:
        """Let all that runs there stand still for a while."""
        self.post(time.sleep, seconds)

    def tell(self, work: Callable[..., object], *args: Any) -> None:
        """From there: run ``work`` on asyncio's loop soon, in the order of telling."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work, *args)

    def _run(self) -> None:
        import trio

        reason = "the network's thread was stopped"
        try:
            trio.run(self._main)
        except BaseException as error:  # told to whoever supervises the thread
            reason = f"the network's thread ended with {error!r}"
            logger.exception("the network's thread failed")
        finally:
            self.tell(self._finish, reason)

    async def _main(self) -> None:
        import trio

        async with trio.open_nursery() as self.nursery:
            self._token = trio.lowlevel.current_trio_token()
            self.tell(self._started.set_result, None)
            await trio.sleep_forever()

    def _begin(
        self,
        scope: trio.CancelScope,
        work: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        future: asyncio.Future[Any],
    ) -> None:
        assert self.nursery is not None
        self.nursery.start_soon(self._work, scope, work, args, future)

    async def _work(
        self,
        scope: trio.CancelScope,
        work: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        future: asyncio.Future[Any],
    ) -> None:
        with scope:
            try:
                self.tell(_settle, future, await work(*args), None)
            except Exception as error:  # noqa: BLE001 - raised again by the caller
                self.tell(_settle, future, None, error)

    def _cancel(self) -> None:
        assert self.nursery is not None
        self.nursery.cancel_scope.cancel()

    def _finish(self, reason: str) -> None:
        for future in self._calls:
            _settle(future, None, PeerUnreachable(reason))
        self.ended.set_result(reason)


def _settle(future: asyncio.Future[Any], value: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)
