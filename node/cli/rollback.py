"""``swarm-node rollback``: go on from an earlier checkpoint."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json
from node.errors import UsageError
from node.monitor.terminal import as_typed, say


def command(
    to: Annotated[
        str, typer.Option("--to", metavar="ROUND|best", help="As swarm-node checkpoints lists it.")
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Let a stopped node go on from an earlier checkpoint; later ones are set aside.

    A checkpoint that was set aside can be gone back to in the same way.
    """
    from node.monitor.terminal import Terminal
    from node.run.resume import roll_back

    if to != "best" and not to.isdecimal():
        raise UsageError("--to", to, "Give the number of a round, or: best.")
    node = open_node(config)
    with Terminal(stderr=True).status("reading the checkpoints"):
        entry, later = roll_back(node.folder, node.config.schedule, to)
    if json:
        print_json({"round": entry.round, "policy_step": entry.policy_step, "set_aside": later})
        return
    aside = ", ".join(map(str, later)) or "none"
    say(f"back at round {entry.round}, policy step {entry.policy_step}; set aside: {aside}")
    say(as_typed("swarm-node join goes on from there"))
