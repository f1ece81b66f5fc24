"""``swarm-node seed``: a peer that lets others find each other, and trains nothing."""

from __future__ import annotations

import math
import threading
import time
from contextlib import ExitStack

from node.config.config import Config
from node.errors import NodeError
from node.monitor.stages import Stages
from node.monitor.telling import teller
from node.network.membership import Membership
from node.run.dashboard import dashboard
from node.run.foreground import announce, stopping
from node.run.observer import LOOK_SECONDS, Observer
from node.run.run_options import RunOptions
from node.run.status_file import StatusFile
from node.storage.run_folder import RunFolder
from node.storage.swarm_files import SwarmFiles
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import Journal, open_or_restore
from swarm.member import Experience
from swarm.pool import Pool

REPORT_SECONDS = 5.0


def run(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Keep records, serve the manifest and pass announcements on, until told to stop.

    With ``monitor.public`` or ``monitor.snapshot`` a sample of what is shared is checked, and the
    swarm shown to everybody.

    Args:
        stages: told what the seed does until it works.

    Raises:
        NodeError: this seed cannot start, or cannot go on.
    """
    counters = Counters()
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        observer = _observer(config, folder, counters, stack)
        status.start()
        stack.callback(status.end)
        SwarmFiles(folder).settle()
        journal, notes = open_or_restore(folder.journal, SystemClock())
        stack.callback(journal.close)
        experience = (
            observer.experience(journal) if observer else _experience(config, journal, counters)
        )
        stages.begin("joining the swarm")
        takes = observer is not None
        membership = stack.enter_context(
            Membership(config, folder, experience, counters, takes=takes, samples=takes)
        )
        stages.close()
        stack.enter_context(stop.working())
        for note in (*notes, *membership.notes):
            tell(note)
        announce(membership, tell)
        if observer:
            stack.enter_context(observer.at_work(membership, tell))
            if observer.url:
                status.serve_swarm(observer.url)
        status.run(membership)
        stack.enter_context(dashboard(config, folder, counters, status, tell))
        work(stop, membership, status, "seed", observer)


def _observer(
    config: Config, folder: RunFolder, counters: Counters, stack: ExitStack
) -> Observer | None:
    monitor = config.monitor
    if not (monitor.public or monitor.snapshot):
        return None
    observer = Observer(config, folder, "seed", monitor.public or False, counters)
    stack.callback(observer.close)
    return observer


def _experience(config: Config, journal: Journal, counters: Counters) -> Experience:
    clock = SystemClock()
    pool = Pool(journal, 1, config.mixture.max_age, clock, counters)
    return Experience.around(pool, journal, clock, counters)


def work(
    stop: threading.Event,
    membership: Membership,
    status: StatusFile,
    what: str,
    observer: Observer | None,
    seconds: float = math.inf,
) -> None:
    """Keep the status true, and look on, until told to stop or for so many seconds.

    Args:
        what: depends on the membership, in a word.

    Raises:
        NodeError: its network side keeps failing.
    """
    due, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        if time.monotonic() >= due:
            due = time.monotonic() + REPORT_SECONDS
            status.write(None)
        if observer:
            observer.look()
        _check_network(membership, what)
        if stop.wait(LOOK_SECONDS if observer else REPORT_SECONDS):
            return


def _check_network(membership: Membership, what: str) -> None:
    if membership.failure:
        raise NodeError(
            f"the network side of this {what} keeps failing",
            membership.failure,
            "The traces are in node.log; start it again once the cause is gone.",
        )
