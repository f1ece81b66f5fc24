"""Counting a swarm and showing it publicly, in a bootstrap node or alone."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from node.config.config import Config
from node.dashboard.access import ListeningSocket, listen
from node.dashboard.public_documents import Observed, data, dialled, documents, unchanging
from node.dashboard.public_server import PageServer, PageWriter, read_census, write_census
from node.network.membership import Membership
from node.storage.run_folder import RunFolder
from swarm.census import Census
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import version
from swarm.journal import Journal
from swarm.member import Experience
from swarm.pool import Pool
from swarm.reputation import RefusalCounts

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PAGE_SECONDS = 10.0
SAVE_SECONDS = 60.0
POOLED, POOLED_SECONDS = 1024, 60.0  # maximum groups, and seconds, until they are counted
KEY = "monitor.public"

Kind = Literal["bootstrap", "observe"]


class Observer:
    """Counts of a swarm, kept in the run folder and shown as a page.

    Its failures are logged and counted (``public_page_failures``), and stop nothing else.
    ``wanted`` is the address, as for :func:`node.dashboard.access.listen`; False is none. Raises
    NodeError if it cannot listen or write the snapshot, and ConfigError for an invalid address.
    """

    def __init__(
        self, config: Config, folder: RunFolder, kind: Kind, wanted: bool | str, counters: Counters
    ) -> None:
        self._config, self._folder, self._kind = config, folder, kind
        self._counters, self._clock, self._tally = counters, SystemClock(), RefusalCounts()
        snapshot = config.monitor.snapshot
        self._snapshot = PageWriter(Path(snapshot)) if snapshot else None
        self._static = unchanging()
        self._place: ListeningSocket | None = listen(wanted, KEY) if wanted else None
        self._server: PageServer | None = None
        self._pool: Pool | None = None
        self._due: dict[str, float] = {}
        self.shown: dict[str, Any] = {}

    def experience(self, journal: Journal) -> Experience:
        """Return the state for a membership, so that all it finds is counted."""
        self._pool = Pool(journal, POOLED, POOLED_SECONDS, self._clock, self._counters)
        heard = self._tally.refused
        return Experience.around(self._pool, journal, self._clock, self._counters, heard)

    @contextmanager
    def at_work(self, membership: Membership, tell: Callable[[str], None]) -> Iterator[None]:
        """Show a membership's swarm during the block; ``tell`` receives the address.

        Raises NodeError if earlier counts can be neither read nor set aside.
        """
        swarm, now = membership.swarm_id.hex(), self._clock.time()
        state = read_census(self._folder.census, swarm, now, self._counters)
        self._membership, self._census = membership, Census(state, self._clock)
        with ExitStack() as stack:
            if self._place:
                self._server = PageServer(self._place, self._counters)
                stack.callback(self._server.close)
                tell(f"the swarm's page: {self._place.url}")
            if self._snapshot:
                tell(f"the swarm's page as files: {self._snapshot.folder}")
            stack.callback(self._try, "save", self._save)
            stack.callback(self._try, "page", self._show)
            self.look()
            yield

    @property
    def url(self) -> str | None:
        return self._place.url if self._place else None

    def close(self) -> None:
        """Release the listening socket if the page was never served."""
        if self._place and not self._server:
            self._place.socket.close()

    def look(self) -> None:
        """Count what is new; show and save it when due. Call it every second."""
        self._try("census", self._count)
        self._when("page", PAGE_SECONDS, self._show)
        self._when("save", SAVE_SECONDS, self._save)

    def _when(self, part: str, seconds: float, work: Callable[[], None]) -> None:
        now = time.monotonic()
        if now >= self._due.get(part, 0.0):
            self._due[part] = now + seconds
            self._try(part, work)

    def _try(self, part: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._counters.add("public_page_failures", part=part)
            log.exception("the swarm's page: %s failed, the node goes on: %s", part, error)

    def _count(self) -> None:
        assert self._pool is not None, "a membership works with this observer's experience"
        arrived, refused = self._pool.arrived(), self._tally.take()
        self._census.look(self._membership.status(), arrived, refused)

    def _show(self) -> None:
        page = self._static | data(self._documents())
        if self._server:
            self._server.show(page)
        if self._snapshot:
            self._snapshot.write(page)

    def _documents(self) -> dict[str, Any]:
        member, status = self._membership, self._membership.status()
        own = self._kind == "bootstrap"
        found = documents(
            self._census,
            Observed(
                version=version(),
                time=self._clock.time(),
                every=PAGE_SECONDS,
                peer_id=status.peer_id,
                kind=self._kind,
                join=dialled(status.addresses) if own else self._config.network.peers,
                manifest=member.manifest,
                swarm_id=member.swarm_id,
            ),
        )
        self.shown = found["swarm"]
        return found

    def _save(self) -> None:
        write_census(self._folder.census, self._census.state)
