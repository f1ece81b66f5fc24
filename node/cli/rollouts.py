"""``swarm-node rollouts``: what a node asked and answered last."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from node.cli.common import ConfigOption, DebugOption, JsonOption, open_node, print_json


def command(
    number: Annotated[int, typer.Option("-n", "--number", min=1, help="How many to show.")] = 3,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show the last rollouts of a node that runs or has run, the newest at the bottom.

    Of each round the worst and the best answer of one own group and of one external group are
    kept, some two dozen in all.
    """
    from node.monitor.rollouts import in_full, read_rollouts
    from node.monitor.terminal import Terminal

    rollouts = read_rollouts(open_node(config).folder.rollouts)[-number:]
    if json:
        print_json([asdict(rollout) for rollout in rollouts])
        return
    Terminal().print(in_full(rollouts))
