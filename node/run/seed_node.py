"""``swarm-node seed``: a peer that lets others find each other, and trains nothing."""

from __future__ import annotations

from contextlib import ExitStack

from node.config.config import Config
from node.errors import NodeError
from node.monitor.stages import Stages
from node.monitor.telling import teller
from node.network.membership import Membership
from node.run.dashboard import dashboard
from node.run.foreground import announce, stopping
from node.run.run_options import RunOptions
from node.run.status_file import StatusFile
from node.storage.run_folder import RunFolder
from node.storage.swarm_files import SwarmFiles
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.experience import Experience
from swarm.journal import open_or_restore
from swarm.pool import Pool

REPORT_SECONDS = 5.0


def run(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Keep records, serve the manifest and pass announcements on, until told to stop.

    Args:
        stages: told what the seed does until it works.

    Raises:
        NodeError: this seed cannot start, or cannot go on.
    """
    clock, counters = SystemClock(), Counters()
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        status.start()
        stack.callback(status.end)
        SwarmFiles(folder).settle()
        journal, notes = open_or_restore(folder.journal, clock)
        stack.callback(journal.close)
        pool = Pool(journal, 1, config.mixture.max_age, clock, counters)
        experience = Experience.around(pool, journal, clock, counters)
        stages.begin("joining the swarm")
        membership = stack.enter_context(
            Membership(config, folder, experience, counters, takes=False)
        )
        stages.close()
        stack.enter_context(stop.working())
        for note in (*notes, *membership.notes):
            tell(note)
        announce(membership, tell)
        status.run(membership)
        stack.enter_context(dashboard(config, folder, counters, status, tell))
        while True:
            status.write(None)
            if membership.failure:
                raise NodeError(
                    "the network side of this seed keeps failing",
                    membership.failure,
                    "The traces are in node.log; start it again once the cause is gone.",
                )
            if stop.wait(REPORT_SECONDS):
                return
