"""``--detach``: a node that goes on in the background."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any

import typer

from node.cli.common import print_json
from node.cli.starting import ready
from node.errors import UsageError
from node.monitor.terminal import as_typed, say

OPTION = "--detach"
DetachOption = Annotated[
    bool,
    typer.Option(OPTION, help="Go on in the background once the node runs; it prints to its log."),
]


def detach(
    given: Path | None, overrides: Mapping[str, Any], *, json: bool = False, member: bool = True
) -> None:
    """Start this very command line in the background, and say how to follow it once it runs.

    Args:
        member: whether others can join its swarm through it.

    Raises:
        UsageError: torchrun has started this process.
        typer.Exit: the node has ended before it ran, with the exit status it ended with.
    """
    from node.distributed.torchrun import Launch
    from node.monitor.logs import ERROR
    from node.monitor.terminal import Terminal
    from node.run.background import start_detached

    if Launch.read():
        raise UsageError(OPTION, "under torchrun", "Start torchrun itself in the background.")
    node = ready(given, overrides, json=json)
    arguments = [argument for argument in sys.argv[1:] if argument not in (OPTION, "--json")]
    with Terminal(stderr=True).status("waiting until the node runs; Ctrl-C ends it"):
        started = start_detached(arguments, node.folder)
    if started.exit_code:
        words = started.last_words or "it said nothing"
        if not words.startswith(ERROR):
            words = f"{ERROR}the node ended with status {started.exit_code}: {words}"
            words += f". All it said is in {node.folder.log}."
        say(words, err=True)
        raise typer.Exit(started.exit_code)
    told = started.status or {}
    addresses = told.get("addresses", []) if member else []
    if json:
        facts = {"pid": started.pid, "running": started.exit_code is None, "addresses": addresses}
        facts["public"] = told.get("public")
        print_json({**facts, "log": str(node.folder.log)})
        return
    if started.status is None:
        say(f"the node has ended: {started.last_words}")
        return
    say(f"the node runs in the background, as process {started.pid}")
    for address in addresses:
        say(f"others join with: swarm-node join --peers {address}")
    if told.get("public"):
        say(f"the swarm's page: {told['public']}")
    config = quote(str(node.path))
    say(as_typed(f"follow it with: swarm-node logs -f --config {config}"))
    say(as_typed(f"stop it with: swarm-node stop --config {config}"))
