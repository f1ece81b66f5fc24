"""``swarm-node join``: run a node in its folder until it is told to stop."""

from __future__ import annotations

from contextlib import ExitStack

import typer

from node.config import Config
from node.monitor.sinks import open_sinks
from node.participant import Participant
from node.run_folder import RunFolder
from node.run_options import RunOptions
from node.running import announce, stopping
from node.status import StatusFile


def run(config: Config, folder: RunFolder, options: RunOptions) -> None:
    """Join and train; Ctrl-C and SIGTERM end it after the round, with a checkpoint.

    Raises:
        NodeError: this node cannot start or cannot go on; what it learned is in the last
            checkpoint.
    """
    with stopping() as stop, folder.locked(), ExitStack() as stack:
        node = stack.enter_context(Participant(config, folder))
        stack.enter_context(stop.working())
        announce(node.membership, options)
        for note in node.notes:
            typer.echo(note, err=options.json)
        status = StatusFile(folder, node.membership)
        status.write(None)
        for sink in (*open_sinks(config, folder, json=options.json), status):
            stack.callback(sink.close)
            node.recorder.add(sink)
        node.rounds.run(config.schedule.rounds, stop)
    done = f"{node.rounds.round} rounds are done; the same command goes on from there"
    typer.echo(done, err=options.json)
