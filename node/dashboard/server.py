"""HTTP servers: bounded connections, a server thread, and a node's dashboard."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from node.config.config import Config
from node.dashboard.access import EntryToken, Guard, Hosts, ListeningSocket, listen
from node.dashboard.app import Asking, application
from node.dashboard.run_view import Feed, RunView
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.fair_limits import holder_of
from swarm.common.util import Say, version

log = logging.getLogger(__name__)

MOST = 96  # maximum open connections
MOST_OF_ONE = 64  # of one machine
# Timeout for a request to be complete, and for a client to read a response that is being sent.
PATIENCE_SECONDS = 10.0


class BoundedConnection(H11Protocol):
    """A connection that aborts if too many are open or if its client is inactive."""

    most: ClassVar[int] = MOST  # maximum open connections
    most_of_one: ClassVar[int] = MOST_OF_ONE  # of one client's machine
    holder = ""  # the client's machine
    _writing: asyncio.TimerHandle | None = None
    _looking: asyncio.TimerHandle | None = None
    _last: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.holder = holder_of(self.client[0]) if self.client else ""
        connections = [each for each in self.connections if isinstance(each, BoundedConnection)]
        same_client = sum(each.holder == self.holder for each in connections)
        if len(self.connections) > self.most or same_client > self.most_of_one:
            transport.abort()
            return
        self._looking = self.loop.call_later(PATIENCE_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        for timer in (self._looking, self._writing):
            if timer:
                timer.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        self._writing = self.loop.call_later(PATIENCE_SECONDS, self.transport.abort)
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._writing:
            self._writing.cancel()
        super().resume_writing()

    def _look(self) -> None:
        """Abort if no request has come since the last look and none is being answered."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self.cycle is self._last:
            self.transport.abort()
            return
        self._last = self.cycle
        self._looking = self.loop.call_later(PATIENCE_SECONDS, self._look)


FAREWELL_SECONDS = 0.2  # for open streams to learn that the server stops
START_SECONDS = 10.0
STOP_SECONDS = 5.0
MOST_HEAD = 16 << 10  # bytes of a request before its body; requests have none


@dataclass(eq=False)
class Serving:
    """A server thread for an application on the listening socket ``place``.

    ``failed`` gets a failure. ``farewell`` is awaited on the loop before connections are closed.
    """

    app: ASGIApp
    place: ListeningSocket
    name: str
    failed: Callable[[BaseException], None]
    farewell: Callable[[], Awaitable[None]] | None = None
    connection: type[BoundedConnection] = BoundedConnection

    def __post_init__(self) -> None:
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                http=self.connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="error",  # clients cause its warnings
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
        self._thread = threading.Thread(target=self._serve, name=self.name, daemon=True)
        self._thread.start()
        self._up.wait(START_SECONDS)

    def close(self) -> None:
        """End all streams and stop; may be called twice."""
        with suppress(RuntimeError):  # the loop has ended, for example after a failure
            if self._loop:
                self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(STOP_SECONDS)
        if self._thread.is_alive():
            self.failed(TimeoutError("its thread does not end"))

    def _serve(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # noqa: BLE001 - uvicorn exits; the node goes on
            self.failed(error)
        finally:
            self._up.set()
            self.place.socket.close()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.call_soon(self._up.set)
        server_task = asyncio.create_task(self._server.serve(sockets=[self.place.socket]))
        stop_task = asyncio.create_task(self._over.wait())
        await asyncio.wait({server_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
        stop_task.cancel()
        if self.farewell:
            await self.farewell()
        self._server.should_exit = True
        await asyncio.sleep(FAREWELL_SECONDS)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await server_task


@dataclass(eq=False)
class Dashboard:
    """A server of one run folder's dashboard, until closed.

    Failures are logged and counted (``dashboard_failures``). ``wanted`` is as in
    ``monitor.dashboard``. ``tell`` gets each new ``url``, with any token. Raises NodeError if it
    cannot listen there, and ConfigError if it is not a place.
    """

    folder: RunFolder
    config: Config
    wanted: bool | str
    counters: Counters
    tell: Say

    def __post_init__(self) -> None:
        self._place = listen(self.wanted)
        self.url = self._place.url
        run = RunView(self.folder, self.config, version(), self.counters)
        self._feed = Feed(run)
        private = self._place.private
        self._asking = Asking(self.folder, self.config, self.counters, private=private)
        hosts = Hosts(self._place.host, private=private)
        entry = None if private else EntryToken(self._tell_token)
        if entry is None:
            self.tell(self.url)
        app = Guard(application(run, self._feed, self._asking), hosts, entry)
        self._serving = Serving(app, self._place, "dashboard", self._failed, farewell=self._leave)

    def close(self) -> None:
        """End all streams and stop; may be called twice."""
        self._serving.close()

    async def _leave(self) -> None:
        self._feed.close()
        await self._asking.close()

    def _tell_token(self, token: str) -> None:
        self.url = f"{self._place.url}?token={token}"
        self.tell(self.url)

    def _failed(self, error: BaseException) -> None:
        self.counters.add("dashboard_failures")
        log.warning("the node continues without the dashboard: %s", error, exc_info=error)
