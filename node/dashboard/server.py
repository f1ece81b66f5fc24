"""A dashboard at work."""

from __future__ import annotations

import logging
from collections.abc import Callable

from node.config.config import Config
from node.dashboard.app import application
from node.dashboard.asking import Asking
from node.dashboard.entry import Entry
from node.dashboard.feed import Feed
from node.dashboard.guard import Guard
from node.dashboard.hosts import Hosts
from node.dashboard.place import listen
from node.dashboard.run_view import RunView
from node.dashboard.serving import Serving
from node.storage.run_folder import RunFolder
from swarm.common.counters import Counters
from swarm.common.util import version

log = logging.getLogger(__name__)


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
        private = self._place.private
        self._asking = Asking(folder, config, counters, private=private)
        hosts = Hosts(self._place.host, private=private)
        entry = None if private else Entry(self._tell_token)
        if entry is None:
            tell(self.url)
        app = Guard(application(run, self._feed, self._asking), hosts, entry)
        self._serving = Serving(app, self._place, "dashboard", self._failed, farewell=self._leave)

    def close(self) -> None:
        """Tell who listens that it is over, and stop; harmless when called twice."""
        self._serving.close()

    async def _leave(self) -> None:
        self._feed.close()
        await self._asking.close()

    def _tell_token(self, token: str) -> None:
        self.url = f"{self._place.url}?token={token}"
        self._tell(self.url)

    def _failed(self, error: BaseException) -> None:
        self._counters.add("dashboard_failures")
        log.warning("the dashboard failed, the node goes on without: %s", error, exc_info=error)
