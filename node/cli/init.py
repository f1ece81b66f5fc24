"""``swarm-node init``: a commented config and an identity."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.common import DebugOption, JsonOption, print_json
from node.monitor.printable import say


def command(
    directory: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write node.toml, with every key explained, and the node's identity."""
    from node.run.new_node import prepare

    folder, identity = prepare(directory)
    if json:
        paths = {"config": str(folder.config), "identity": str(folder.identity)}
        print_json({**paths, "peer_id": identity.peer_id})
        return
    say(f"wrote {folder.config} and {folder.identity}")
    say(f"this node is {identity.peer_id}")
    say(f"next: swarm-node join --config {folder.config} --peers ADDRESS")
