"""``swarm-node join``: run a node in its folder until it is told to stop."""

from __future__ import annotations

import logging
import signal
from contextlib import ExitStack

from node.config.config import Config
from node.distributed.ranks import Ranks, end_at_once
from node.distributed.sharded_learner import follow
from node.distributed.torchrun import Launch
from node.monitor.groups_file import GroupsFile
from node.monitor.printable import PrintableFormatter
from node.monitor.sinks import open_sinks
from node.monitor.stages import Stages
from node.monitor.telling import teller
from node.network.moving import enter
from node.run.dashboard import dashboard
from node.run.foreground import STOPS, announce, stopping
from node.run.participant import Participant
from node.run.run_options import RunOptions
from node.run.status_file import StatusFile
from node.storage.run_folder import RunFolder
from swarm.common.util import counted


def run(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Join and train; Ctrl-C, SIGTERM and SIGHUP end it after the round, with a checkpoint.

    Where torchrun has started several processes, this is the one of rank 0.

    Args:
        stages: told what the node does until it works.

    Raises:
        ConfigError: several processes cannot do what the config asks for.
        NodeError: this node cannot start or cannot go on; what it learned is in the last
            checkpoint.
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
        node = stack.enter_context(
            Participant(config, folder, ranks=ranks, say=tell, stage=stages.begin)
        )
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
        end_at_once(0)


def ended(done: int, asked: int) -> str:
    """What is said behind the last round, with how to go on.

    Args:
        done: rounds, earlier runs in the folder included.
        asked: how many there were to be; 0 where the node went on until it was stopped.
    """
    count = f"{counted(done, 'round')} {'is' if done == 1 else 'are'} done"
    if not asked or done < asked:
        return f"{count}; the same command goes on from there"
    if done > asked:
        count += f", of the {asked} asked for"
    return f"{count}; go on with a larger --rounds, or with --rounds 0 until you stop it"


def help_learn(launch: Launch) -> None:
    """Be a rank other than 0 until rank 0 ends, whom alone a signal stops.

    Raises:
        NodeError: the ranks cannot go on together.
    """
    messages = logging.StreamHandler()
    messages.setFormatter(PrintableFormatter(f"rank {launch.rank}: %(message)s"))
    logging.basicConfig(handlers=[messages])
    with Ranks(launch) as ranks:
        for number in STOPS:
            signal.signal(number, signal.SIG_IGN)
        follow(ranks)
    end_at_once(0)
