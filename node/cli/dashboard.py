"""``swarm-node dashboard``: look at a run in a browser, whether its node works or not."""

from __future__ import annotations

from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, open_node
from node.monitor.terminal import say


def command(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Serve it there. Left out: on this machine alone, on port 8710 or the next free.",
            show_default=False,
        ),
    ] = None,
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Serve the page of a run folder, read-only, until Ctrl-C."""
    from node.dashboard.server import Dashboard
    from node.run.foreground import stopping
    from swarm.common.counters import Counters

    node = open_node(config)
    with stopping() as stop:
        served = Dashboard(
            node.folder,
            node.config,
            address or True,
            Counters(),
            lambda url: say(f"look at it in a browser: {url}"),
        )
        try:
            with stop.working():
                stop.wait()
        finally:
            served.close()
