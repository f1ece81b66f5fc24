"""Run a bootstrap node or an observer until it is stopped, without torch in its process."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

from node.config.config import Config
from node.config.registry import TRANSPORTS
from node.dashboard.access import ListeningSocket, listen
from node.dashboard.public_server import (
    Observed,
    PageServer,
    PageWriter,
    data,
    dialed,
    documents,
    read_census,
    unchanging,
    write_census,
)
from node.errors import ConfigError, NodeError
from node.monitor.live import Stages
from node.monitor.logs import teller
from node.monitor.output import say
from node.network.membership import Membership
from node.network.transports import TransportKind
from node.run.status import RunOptions, StatusFile, Stop, announce, dashboard, stopping
from node.storage.run_folder import RunFolder
from swarm.census import Census
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import Say, plain_json, version
from swarm.journal import Journal, open_or_restore
from swarm.member import Experience
from swarm.pool import Pool
from swarm.reputation import RefusalCounts

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
PAGE_SECONDS = 10.0
SAVE_SECONDS = 60.0
PATIENCE_SLOTS = 3  # time slots in which an author of before a restart does not count as left
POOLED, POOLED_SECONDS = 1024, 60.0  # maximum groups, and seconds, until they are counted
KEY = "monitor.public"

Kind = Literal["bootstrap", "observe"]


class Observer:
    """Counts of a swarm, kept in the run folder and shown as a page.

    Call :meth:`experience` once, then :meth:`at_work`, and :meth:`look` only during its block. Its
    failures are logged and counted (``public_page_failures``), and stop nothing else.
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
        return Experience.around(self._pool, self._tally.refused)

    @contextmanager
    def at_work(self, membership: Membership, tell: Say) -> Iterator[None]:
        """Show the swarm during the block; ``tell`` gets the address. Raises NodeError."""
        swarm, now = membership.swarm_id.hex(), self._clock.time()
        state = read_census(self._folder.census, swarm, now, self._counters)
        patience = PATIENCE_SLOTS * membership.manifest.epoch_seconds
        self._membership, self._census = membership, Census(state, self._clock, patience)
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
            log.exception("the swarm's page: %s failed, the node continues: %s", part, error)

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
        is_member = self._kind == "bootstrap"
        result = documents(
            self._census,
            Observed(
                version=version(),
                time=self._clock.time(),
                every=PAGE_SECONDS,
                peer_id=status.peer_id,
                kind=self._kind,
                join=dialed(status.addresses) if is_member else self._config.network.peers,
                manifest=member.manifest,
                swarm_id=member.swarm_id,
            ),
        )
        self.shown = result["swarm"]
        return result

    def _save(self) -> None:
        write_census(self._folder.census, self._census.state)


REPORT_SECONDS = 5.0


def run_untrained(
    kind: Kind,
    config: Config,
    folder: RunFolder,
    options: RunOptions,
    stages: Stages,
    seconds: float = math.inf,
) -> None:
    """Run a bootstrap node, or observe a swarm and share nothing, until stopped.

    It ends after ``seconds`` at the latest. An observer prints its last view with
    ``options.json``. Raises NodeError if it cannot start or continue.
    """
    section = config.network
    network: TransportKind = TRANSPORTS.open(section.transport, section.transport_options)
    network.prepare_process()
    counters, observing = Counters(), kind == "observe"
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(tell, status.stop) as stop, folder.locked(), ExitStack() as stack:
        public, snapshot, observer = config.monitor.public, config.monitor.snapshot, None
        if observing or public or snapshot:
            wanted = public or (observing and not snapshot)
            observer = Observer(config, folder, kind, wanted, counters)
            stack.callback(observer.close)
        status.start()
        stack.callback(status.end)
        journal, notes = open_or_restore(folder.journal, SystemClock())
        stack.callback(journal.close)
        if observer:
            experience = observer.experience(journal)
        else:
            pool = Pool(journal, 1, config.mixture.max_age, SystemClock(), counters)
            experience = Experience.around(pool)
        stages.begin("dialing the named peers" if observing else "joining the swarm")
        pulls = observer is not None
        member = Membership(
            config, folder, experience, counters, takes=pulls, samples=pulls, quiet=observing
        )
        stack.enter_context(member)
        stages.close()
        stack.enter_context(stop.working())
        for note in (*notes, *member.notes):
            tell(note)
        announce(member, tell, watches=observing)
        if observer:
            stack.enter_context(observer.at_work(member, tell))
            if observer.url:
                status.serve(observer.url, "public")
        status.run(member)
        if not observing:
            stack.enter_context(dashboard(config, folder, counters, status, tell))
        _work(member, observer, status, stop, seconds)
    if observing and observer and options.json:
        say(plain_json(observer.shown))


def _work(
    member: Membership, observer: Observer | None, status: StatusFile, stop: Stop, seconds: float
) -> None:
    due, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        if time.monotonic() >= due:
            due = time.monotonic() + REPORT_SECONDS
            status.write(None)
        if observer:
            observer.look()
        if member.failure:
            remedy = "The stack traces are in node.log; start it again after you fix the cause."
            raise NodeError("the node's network process keeps failing", member.failure, remedy)
        if stop.wait(LOOK_SECONDS if observer else REPORT_SECONDS):
            return


def check_peers(config: Config, folder: RunFolder) -> None:
    """Raise ConfigError if no peer is named and the folder has no manifest."""
    if not (config.network.peers or folder.manifest.exists()):
        remedy = "Name members of the swarm: swarm-node observe --peers ADDRESS."
        raise ConfigError("network.peers", "[]", remedy)
