"""What join, bootstrap and observe do: run a node until it is stopped."""

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
from node.run.observer import LOOK_SECONDS, Kind, Observer
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder, SwarmFiles
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.common.util import counted
from swarm.journal import open_or_restore
from swarm.member import Experience
from swarm.pool import Pool

REPORT_SECONDS = 5.0


def run_bootstrap(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Run a bootstrap node until stopped; raise NodeError if it cannot continue.

    With ``monitor.public`` or ``monitor.snapshot`` it checks a sample of groups and shows the
    swarm.
    """
    _run(config, folder, options, stages, "bootstrap", math.inf)


def run_observer(
    config: Config, folder: RunFolder, options: RunOptions, stages: Stages, seconds: float
) -> None:
    """Observe a swarm until stopped or for ``seconds`` (0: no limit); share nothing.

    With ``options.json`` it prints the last view. Raises NodeError if it cannot start or continue.
    """
    observer = _run(config, folder, options, stages, "observe", seconds or math.inf)
    if observer and options.json:
        say(json.dumps(observer.shown))


def _run(
    config: Config,
    folder: RunFolder,
    options: RunOptions,
    stages: Stages,
    kind: Kind,
    seconds: float,
) -> Observer | None:
    counters, watches = Counters(), kind == "observe"
    tell, status = teller(folder.log, err=options.json), StatusFile(folder)
    with stopping(status.stop_after(tell)) as stop, folder.locked(), ExitStack() as stack:
        public, snapshot, observer = config.monitor.public, config.monitor.snapshot, None
        if watches or public or snapshot:
            wanted = public or (watches and not snapshot)
            observer = Observer(config, folder, kind, wanted, counters)
            stack.callback(observer.close)
        status.start()
        stack.callback(status.end)
        SwarmFiles(folder).settle()
        journal, notes = open_or_restore(folder.journal, SystemClock())
        stack.callback(journal.close)
        if observer:
            experience = observer.experience(journal)
        else:
            pool = Pool(journal, 1, config.mixture.max_age, SystemClock(), counters)
            experience = Experience.around(pool, journal, SystemClock(), counters)
        stages.begin("dialling the peers that are named" if watches else "joining the swarm")
        pulls = observer is not None
        member = Membership(
            config, folder, experience, counters, takes=pulls, samples=pulls, quiet=watches
        )
        stack.enter_context(member)
        stages.close()
        stack.enter_context(stop.working())
        for note in (*notes, *member.notes):
            tell(note)
        announce(member, tell, watches=watches)
        if observer:
            stack.enter_context(observer.at_work(member, tell))
            if observer.url:
                status.serve(observer.url, "public")
        status.run(member)
        if not watches:
            stack.enter_context(dashboard(config, folder, counters, status, tell))
        work(stop, member, status, kind, observer, seconds)
    return observer


def work(
    stop: threading.Event,
    membership: Membership,
    status: StatusFile,
    what: str,
    observer: Observer | None,
    seconds: float,
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
        if membership.failure:
            failure = f"the network side of this {what} keeps failing"
            remedy = "The traces are in node.log; start it again once the cause is gone."
            raise NodeError(failure, membership.failure, remedy)
        if stop.wait(LOOK_SECONDS if observer else REPORT_SECONDS):
            return


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
    """Run a rank other than 0 until rank 0 ends; a signal stops only rank 0."""
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
        remedy = "Name members of the swarm: swarm-node observe --peers ADDRESS."
        raise ConfigError("network.peers", "[]", remedy)
