"""``swarm-node identity``: the key that a node is known by."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json
from node.monitor.printable import say

app = typer.Typer(help="Show or copy the key that this node is known by.", no_args_is_help=True)


@app.command("show", epilog="Example: swarm-node identity show --json")
def show(config: ConfigOption = None, json: JsonOption = False, debug: DebugOption = False) -> None:
    """Show the peer id and the public key."""
    from protocol.identity import Identity

    node = open_node(config)
    identity = Identity.load(node.folder.identity)
    facts = {
        "peer_id": identity.peer_id,
        "public_key": identity.author.hex(),
        "file": str(node.folder.identity),
    }
    if json:
        print_json(facts)
        return
    for name, value in facts.items():
        say(f"{name.replace('_', ' '):<12}{value}")


@app.command("export", epilog="Example: swarm-node identity export --out backup.key")
def export(
    out: Annotated[Path, typer.Option("--out", help="New file for the private key.")],
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Copy the private key to a new file (libp2p's format, readable by you alone)."""
    from node.storage.atomic_files import write_new
    from protocol.identity import Identity

    node = open_node(config)
    identity = Identity.load(node.folder.identity)
    write_new(out, identity.export())
    if json:
        print_json({"peer_id": identity.peer_id, "file": str(out)})
        return
    say(f"wrote the key of {identity.peer_id} to {out}")
    say("whoever has this file is this node: keep it as you keep a password")
