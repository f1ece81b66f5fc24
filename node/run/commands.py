"""What join, seed and watch do: run a node until it is stopped."""

from __future__ import annotations

import json
import logging
import math
import signal
import threading
import time
from contextlib import ExitStack

from node.config.config import Config
from node.distributed.ranks import Ranks, exit_immediately
from node.distributed.sharded_learner import follow
from node.distributed.torchrun import Launch
from node.errors import ConfigError, NodeError
from node.monitor.groups import GroupsFile
from node.monitor.live import Stages
from node.monitor.logs import teller
from node.monitor.output import PrintableFormatter, say
from node.monitor.sinks import open_sinks
from node.network.membership import Membership
from node.network.moving import enter
from node.run.foreground import STOPS, RunOptions, announce, dashboard, stopping
from node.run.node import Node
from node.run.observer import LOOK_SECONDS, Observer
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder, SwarmFiles
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.journal import Journal, open_or_restore
from swarm.member import Experience
from swarm.pool import Pool

REPORT_SECONDS = 5.0


def run_seed(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Run a bootstrap node until stopped; raise NodeError if it cannot continue.

    With ``monitor.public`` or ``monitor.snapshot`` it checks a sample of groups and shows the
    swarm.
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
    """Refresh the status and observe until stopped or ``seconds`` have passed.

    ``what`` names the command. Raises NodeError if the network side keeps failing.
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


def run_join(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Join and train; Ctrl-C, SIGTERM and SIGHUP end it after the round.

    It then writes a checkpoint. Under torchrun, this is the process of rank 0. Raises ConfigError
    if several processes cannot do what the config asks for, and NodeError if the node cannot start
    or continue; the last checkpoint has what it learned.
    """
    if launch := Launch.read():
        launch.check(config)

    tell, status = teller(folder.log, err=options.json), StatusFile(folder)

    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        status.start()
        stack.callback(status.end)
        for note in enter(config, folder, options.swarm):
            tell(note)
        ranks = stack.enter_context(Ranks(launch)) if launch else None
        node = stack.enter_context(Node(config, folder, ranks=ranks, say=tell, stage=stages.begin))
        stages.close()
        stack.enter_context(stop.working())
        announce(node.membership, tell)
        for note in node.notes:
            tell(note)
        status.run(node.membership)
        stack.callback(node.recorder.close)
        stack.enter_context(dashboard(config, folder, node.counters, status, tell))
        sinks = open_sinks(config, folder, node.recorder.rollouts, json=options.json)
        for sink in (*sinks, GroupsFile(folder.groups, node.groups.take), status):
            node.recorder.add(sink)
        node.rounds.run(config.schedule.rounds, stop)
    tell(ended(node.rounds.round, config.schedule.rounds))
    if launch:
        exit_immediately(0)


def ended(done: int, asked: int) -> str:
    """Return the message after ``done`` of ``asked`` rounds (0: no limit)."""
    count = f"{counted(done, 'round')} {'is' if done == 1 else 'are'} done"
    if not asked or done < asked:
        return f"{count}; the same command goes on from there"
    if done > asked:
        count += f", of the {asked} asked for"
    return f"{count}; go on with a larger --rounds, or with --rounds 0 until you stop it"


def help_learn(launch: Launch) -> None:
    """Run a rank other than 0 until rank 0 ends; a signal stops only rank 0.

    Raises NodeError if the ranks cannot continue together.
    """
    messages = logging.StreamHandler()
    messages.setFormatter(PrintableFormatter(f"rank {launch.rank}: %(message)s"))
    logging.basicConfig(handlers=[messages])
    with Ranks(launch) as ranks:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        follow(ranks)
    exit_immediately(0)


def check_peers(config: Config, folder: RunFolder) -> None:
    """Raise ConfigError if no peer is named and the folder has no manifest."""
    if not (config.network.peers or folder.manifest.exists()):
        raise ConfigError(
            "network.peers", "[]", "Name members of the swarm: swarm-node watch --peers ADDRESS."
        )


def run_watch(
    config: Config, folder: RunFolder, options: RunOptions, stages: Stages, seconds: float
) -> None:
    """Observe a swarm until stopped or for ``seconds`` (0: no limit); share nothing.

    With ``options.json`` it prints the last view. Raises NodeError if it cannot start or continue.
    """
    counters = Counters()
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        public, snapshot = config.monitor.public, config.monitor.snapshot
        observer = Observer(config, folder, "watch", public or not snapshot, counters)
        stack.callback(observer.close)
        status.start()
        stack.callback(status.end)
        SwarmFiles(folder).settle()
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
