"""``swarm-node watch``: the page of a swarm that one does not belong to."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack

from node.config.config import Config
from node.errors import ConfigError
from node.monitor.printable import say
from node.monitor.stages import Stages
from node.monitor.telling import teller
from node.network.membership import Membership
from node.run.foreground import stopping
from node.run.observer import Observer
from node.run.run_options import RunOptions
from node.run.seed_node import work
from node.run.status_file import StatusFile
from node.storage.run_folder import RunFolder
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.journal import open_or_restore


def check_peers(config: Config, folder: RunFolder) -> None:
    """Look for a swarm to watch.

    Raises:
        ConfigError: none is named.
    """
    if not (config.network.peers or folder.manifest.exists()):
        raise ConfigError(
            "network.peers", "[]", "Name members of the swarm: swarm-node watch --peers ADDRESS."
        )


def run(
    config: Config, folder: RunFolder, options: RunOptions, stages: Stages, seconds: float
) -> None:
    """Look on, announce nothing and share nothing, until told to stop.

    Args:
        stages: told what is done until it works.
        seconds: after which it ends by itself; 0: never. With ``options.json`` what was seen last
            is printed then.

    Raises:
        NodeError: it cannot start, or cannot go on.
    """
    counters = Counters()
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        public, snapshot = config.monitor.public, config.monitor.snapshot
        observer = Observer(config, folder, "watch", public or not snapshot, counters)
        stack.callback(observer.close)
        status.start()
        stack.callback(status.end)
        journal, notes = open_or_restore(folder.journal, SystemClock())
        stack.callback(journal.close)
        stages.begin("dialling the peers that are named")
        membership = stack.enter_context(
            Membership(
                config,
                folder,
                observer.experience(journal),
                counters,
                samples=True,
                quiet=True,
            )
        )
        stages.close()
        stack.enter_context(stop.working())
        for note in (*notes, *membership.notes):
            tell(note)
        name, swarm = membership.manifest.name, membership.swarm_id.hex()[:16]
        tell(f"watching swarm {name!r} {swarm}, as {membership.status().peer_id}")
        with observer.at_work(membership, tell):
            if observer.url:
                status.serve_swarm(observer.url)
            status.run(membership)
            work(stop, membership, status, "watch", observer, seconds or math.inf)
    if options.json:
        say(json.dumps(observer.shown))
