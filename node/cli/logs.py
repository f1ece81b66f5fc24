"""``swarm-node logs``: what a node says of itself, in sentences."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, open_node
from node.monitor.terminal import say

LOOK_SECONDS = 0.25


def command(
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what is added, until the node has ended.")
    ] = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=0, help="Lines of what is there already.")
    ] = 20,
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Show the end of the node's log, node.log in its run folder. Ctrl-C ends it."""
    from node.monitor.logs import LogTail

    folder = open_node(config).folder
    with closing(LogTail(folder.log)) as tail:
        _show(tail.last(lines))
        while follow:
            # Asked before the log is read: whatever it said is there once it has ended.
            follow = folder.holder() is not None
            _show(tail.new())
            if follow:
                time.sleep(LOOK_SECONDS)
        _show(tail.rest())


def _show(lines: list[str]) -> None:
    for line in lines:
        say(line)
