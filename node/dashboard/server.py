"""A dashboard at work, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from node.config.config import Config
from node.dashboard.app import application
from node.dashboard.connections import Connection
from node.dashboard.entry import Entry
from node.dashboard.feed import Feed
from node.dashboard.guard import Guard
from node.dashboard.hosts import Hosts
from node.dashboard.place import listen
from node.dashboard.run_view import RunView
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

FAREWELL_SECONDS = 0.2
"""In which open streams are told that it is over."""
START_SECONDS = 10.0
STOP_SECONDS = 5.0
MOST_HEAD = 16 << 10
"""Bytes of a request before its body, of which there is none."""


class Dashboard:
    """Serves the page of one run folder until it is closed.

    Whatever fails in it is logged and counted (``dashboard_failures``), and ends nothing else.

    Args:
        wanted: where, as in ``monitor.dashboard``.
        tell: told where a browser finds it, at once and whenever that changes.

    Attributes:
        url: where it is found, with what it takes to get in.

    Raises:
        NodeError: it cannot listen there.
        ConfigError: that is no place.
    """

    def __init__(
        self,
        folder: RunFolder,
        config: Config,
        wanted: bool | str,
        counters: Counters,
        tell: Callable[[str], None],
    ) -> None:
        self._place = listen(wanted)
        self.url = self._place.url
        self._counters = counters
        self._tell = tell
        run = RunView(folder, config, version())
        self._feed = Feed(run.look, run.begin)
        hosts = Hosts(self._place.host, private=self._place.private)
        entry = None if self._place.private else Entry(self._tell_token)
        if entry is None:
            tell(self.url)
        self._server = uvicorn.Server(
            uvicorn.Config(
                Guard(application(run, self._feed), hosts, entry),
                http=Connection,
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
        self._thread = threading.Thread(target=self._serve, name="dashboard", daemon=True)
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
        self._feed.close()
        self._server.should_exit = True
        await asyncio.sleep(FAREWELL_SECONDS)
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        await serving

    def _tell_token(self, token: str) -> None:
        self.url = f"{self._place.url}?token={token}"
        self._tell(self.url)

    def _failed(self, error: BaseException) -> None:
        self._counters.add("dashboard_failures")
        log.warning("the dashboard failed, the node goes on without: %s", error, exc_info=error)


def version() -> str:
    """Of this program; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version("swarm-node")
    except importlib.metadata.PackageNotFoundError:
        return ""
