"""A web server beside a node, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import uvicorn
from starlette.types import ASGIApp

from node.dashboard.connections import Connection
from node.dashboard.place import Place

FAREWELL_SECONDS = 0.2
"""In which open streams are told that it is over."""
START_SECONDS = 10.0
STOP_SECONDS = 5.0
MOST_HEAD = 16 << 10
"""Bytes of a request before its body, of which there is none."""


class Serving:
    """Serves an application until it is closed.

    Args:
        place: where it listens; closed with it.
        name: of the thread.
        failed: told what fails in it, once; it ends nothing else.
        farewell: awaited on its loop before connections are closed.
        connection: what each of them is.
    """

    def __init__(
        self,
        app: ASGIApp,
        place: Place,
        name: str,
        failed: Callable[[BaseException], None],
        *,
        farewell: Callable[[], Awaitable[None]] | None = None,
        connection: type[Connection] = Connection,
    ) -> None:
        self._place = place
        self._failed = failed
        self._farewell = farewell
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                h11_max_incomplete_event_size=MOST_HEAD,
                timeout_keep_alive=5,
                timeout_graceful_shutdown=1,
            )
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        self._up.wait(START_SECONDS)

    def close(self) -> None:
        """Tell who listens that it is over, and stop; harmless when called twice."""
        with suppress(RuntimeError):  # its loop has ended, as where it failed
            if self._loop:
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            self._failed(TimeoutError("its thread does not end"))

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - uvicorn exits; the node goes on
            self._failed(error)
        finally:
            self._up.set()
            self._place.socket.close()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._up.set)
        serving = asyncio.create_task(self._server.serve(sockets=[self._place.socket]))
        over = asyncio.create_task(self._over.wait())
        await asyncio.wait({serving, over}, return_when=asyncio.FIRST_COMPLETED)
        over.cancel()
        if self._farewell:
            await self._farewell()
        self._server.should_exit = True
        await asyncio.sleep(FAREWELL_SECONDS)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await serving
