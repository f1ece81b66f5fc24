"""``swarm-node identity``: show, export or import the private key of a node."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import Command, ConfigOption, JsonOption, find_config, open_node, print_json
from node.monitor.output import say
from node.storage.run_folder import RunFolder

identity_app = typer.Typer(
    help="Show, export or import the private key of a node.", no_args_is_help=True
)
command = partial(identity_app.command, cls=Command)


@command("show", epilog="Example: swarm-node identity show --json")
def show_identity(config: ConfigOption = None, json: JsonOption = False) -> None:
    """Show the peer id and the public key."""
    from protocol.identity import Identity

    node = open_node(config)
    identity = Identity.load(node.folder.identity)
    fields = {
        "peer_id": identity.peer_id,
        "public_key": identity.author.hex(),
        "file": str(node.folder.identity),
    }
    if json:
        print_json(fields)
        return
    for name, value in fields.items():
        say(f"{name.replace('_', ' '):<12}{value}")


@command("export", epilog="Example: swarm-node identity export --out backup.key")
def export_identity(
    out: Annotated[Path, typer.Option("--out", help="New file for the private key.")],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Copy the private key to a new file (libp2p's format, readable only by you)."""
    from node.storage.atomic_files import write_new
    from protocol.identity import Identity

    identity = Identity.load(open_node(config).folder.identity)
    write_new(out, identity.export())
    if json:
        print_json({"peer_id": identity.peer_id, "file": str(out)})
        return
    say(f"wrote the key of {identity.peer_id} to {out}")
    say("this file is the identity of the node: keep it as secret as a password")


@command("import", epilog="Example: swarm-node identity import --in backup.key -c my-node")
def import_identity_command(
    source: Annotated[
        Path, typer.Option("--in", help="File with a private key that export wrote.")
    ],
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Import a key into a node that has none, or that already has this key.

    If there is no node yet, the command creates one as init does. Do not run two nodes with one
    key.
    """
    from node.run.preflight import import_identity, prepare
    from protocol.identity import Identity

    identity = Identity.load(source)
    new = _folder_without_node(config)
    folder = new or open_node(config).folder
    written = import_identity(folder, identity)
    if new:
        prepare(new.root)
    if json:
        print_json({"peer_id": identity.peer_id, "file": str(folder.identity), "written": written})
        return
    if not written:
        say(f"{folder.identity} is already the key of {identity.peer_id}")
        return
    if new:
        say(f"created a node in {new.root}; its settings are in {new.config}")
    say(f"wrote the key of {identity.peer_id} to {folder.identity}")
    say("stop any other node with this key: two nodes must never share one")


def _folder_without_node(config: Path | None) -> RunFolder | None:
    """Return the folder for a new node; None if one exists or its file is named."""
    from node.cli.join import NEW_FOLDER

    path = find_config(config)
    if path is None:
        return RunFolder(NEW_FOLDER)
    if path.exists() or config is None or config.suffix == ".toml":
        return None
    return RunFolder(config)
