"""``swarm-node init``: a commented config and an identity."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from node.cli.common import DebugOption, JsonOption, open_node, print_json
from node.monitor.printable import say


def command(
    directory: Annotated[Path, typer.Argument(help="Folder to write to.")] = Path(),
    systemd: Annotated[
        bool,
        typer.Option(
            "--systemd",
            help="Write a unit for your systemd as well; into the folder of a node that is there, "
            "nothing else.",
        ),
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write node.toml, with every key explained, and the node's identity."""
    from node.run.new_node import open_identity, prepare
    from node.run.systemd_unit import write_unit
    from node.storage.run_folder import RunFolder

    folder = RunFolder(directory)
    made = not (systemd and folder.config.exists())
    if made:
        folder, identity = prepare(directory)
    else:
        folder = open_node(folder.config).folder
        identity, _ = open_identity(folder)
    config = directory / folder.config.name
    unit = write_unit(config) if systemd else None
    if json:
        paths = {"config": str(config), "identity": str(folder.identity)}
        print_json({**paths, "peer_id": identity.peer_id, "unit": str(unit) if unit else None})
        return
    if made:
        say(f"wrote {config} and {folder.identity}")
    say(f"this node is {identity.peer_id}")
    if unit is None:
        say(f"next: swarm-node join --config {config} --peers ADDRESS")
        return
    say(f"wrote {unit}")
    say(f"next: systemctl --user link {quote(str(unit))}")
    say(f"then: systemctl --user enable --now {unit.name}")
