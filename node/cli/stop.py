"""``swarm-node stop``: the end of a node that runs, in order."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json
from node.errors import NodeError
from node.monitor.terminal import say


def command(
    config: ConfigOption = None,
    now: Annotated[
        bool, typer.Option("--now", help="At once: do not let it end its round.")
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Stop the node after its round, with a checkpoint, and wait for that.

    Ctrl-C ends the waiting alone. Stopping a node that does not run is no error.
    """
    from node.monitor.terminal import CRASHED, Terminal, present_status
    from node.run.background import stop_node
    from node.storage.checkpoints import Checkpoints

    folder = open_node(config).folder
    with Terminal(stderr=True).status("waiting until the node has ended"):
        pid = stop_node(folder, now=now)
    status = present_status(folder)
    if pid is not None and status["state"] == CRASHED:
        remedy = f"What it said last is in {folder.log}."
        raise NodeError("the node ended without a word", f"process {pid}", remedy)
    steps = Checkpoints(folder.checkpoints).steps()
    checkpoint = str(Checkpoints(folder.checkpoints).path(steps[-1])) if steps else None
    done = status["record"]["round"] if status["record"] else None
    if json:
        print_json({"pid": pid, "state": status["state"], "round": done, "checkpoint": checkpoint})
        return
    say(f"no node runs in {folder.root}" if pid is None else f"stopped process {pid}")
    if done is not None:
        say(f"its last round is {done}, its last checkpoint {checkpoint or 'not written yet'}")
