"""Run a node that trains until it is stopped."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import typer

from node.config.config import Config, set_keys
from node.config.schema import toml_value
from node.distributed.ranks import Ranks, exit_immediately
from node.distributed.sharded_learner import follow
from node.distributed.torchrun import Launch
from node.errors import NodeError
from node.evaluation.baseline import SECONDS, BaselineTrial
from node.monitor.groups import GroupsFile
from node.monitor.live import Stages
from node.monitor.logs import teller
from node.monitor.output import PrintableFormatter
from node.monitor.sinks import open_sinks
from node.network.pinned_manifest import enter
from node.run.node import Node
from node.run.status import STOPS, RunOptions, StatusFile, announce, dashboard, stopping
from node.storage.run_folder import RunFolder
from swarm.common.util import counted
from swarm.verification import JudgeRefused


@dataclass(frozen=True, slots=True)
class BaselineDialogue:
    """Tries a policy, says what was found, and changes the config if the user agrees.

    ``tell`` prints and logs a line. The question is asked only at a terminal, without ``--json``.
    """

    options: RunOptions
    stages: Stages
    tell: Callable[[str], None]

    def __call__(self, trial: BaselineTrial) -> Mapping[str, Any]:
        """Return the keys that the config is changed by, for this run and in its file."""
        self.stages.begin(
            f"evaluating the policy on the swarm's tasks, for at most {SECONDS:g} seconds "
            "(--no-baseline skips it)"
        )
        try:
            found = trial.run(SECONDS, self.stages.progress)
        except (JudgeRefused, NodeError) as error:
            self.tell(f"the policy could not be evaluated on this swarm's tasks: {error}")
            return {}
        for line in found.lines():
            self.tell(line)
        keys = found.settings()
        if not keys:
            return {}
        for key, value in keys.items():
            self.tell(f"  suggested: {key} = {toml_value(value)}")
        if not self._agreed():
            return {}
        if self.options.config is not None:
            try:
                set_keys(self.options.config, keys)
            except (NodeError, OSError) as error:
                self.tell(f"this run has these settings, but {error}")
            else:
                self.tell(f"written to {self.options.config}")
        return keys

    def _agreed(self) -> bool:
        if self.options.accept:
            return True
        if self.options.json or not (sys.stdin.isatty() and sys.stdout.isatty()):
            self.tell("to accept it, start the node with --accept")
            return False
        self.stages.close()
        try:
            return typer.confirm("write that into the config and train with it?", default=True)
        except typer.Abort as error:
            if isinstance(error.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise NodeError("no answer", "end of input", "Type y or n, or add --accept.") from error


def run_join(config: Config, folder: RunFolder, options: RunOptions, stages: Stages) -> None:
    """Join and train, as rank 0 under torchrun; a signal ends it after the round.

    It then writes a checkpoint. Raises ConfigError if several processes cannot do what the config
    asks for, and NodeError if the node cannot start or continue.
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
        baseline = BaselineDialogue(options, stages, tell) if options.baseline else None
        node = stack.enter_context(
            Node(config, folder, ranks=ranks, say=tell, stage=stages.begin, baseline=baseline)
        )
        stages.close()
        stack.enter_context(stop.working())
        announce(node.membership, tell)
        for note in node.notes:
            tell(note)
        config = node.config
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
        return f"{count}; run the same command to resume"
    if done > asked:
        count += f", of the {asked} asked for"
    return f"{count}; continue with a larger --rounds, or with --rounds 0 until you stop it"


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
