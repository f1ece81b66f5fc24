"""``swarm-node join``: become a member of a swarm and train."""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from node.cli.common import (
    ConfigOption,
    DebugOption,
    JsonOption,
    LanOption,
    PeersOption,
    SetOption,
    StopOption,
    overrides_of,
)
from node.cli.detaching import DetachOption, detach
from node.cli.starting import start


def command(
    peers: PeersOption = None,
    lan: LanOption = False,
    config: ConfigOption = None,
    mix: Annotated[
        str | None,
        typer.Option("--mix", metavar="OWN/EXTERNAL", help="Groups in an update, as in 4/4."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", help="Stop when so many are done in all; 0: never.")
    ] = None,
    swarm: Annotated[
        str | None,
        typer.Option(
            "--swarm",
            metavar="ID",
            help="Train in this swarm; a node of another moves there with its policy.",
        ),
    ] = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    detached: DetachOption = False,
    stop_on_eof: StopOption = False,
) -> None:
    """Join a swarm and train; go on where the run folder stopped. Ctrl-C ends it cleanly.

    Without a config it makes a node in ./swarm-run. Without peers it trains alone until found.
    """
    from node.distributed.torchrun import Launch
    from node.run.foreground import RunOptions

    launch = Launch.read()
    if launch and launch.rank:
        from node.run.commands import help_learn

        help_learn(launch)
        return

    overrides = overrides_of(assignments, peers, mix, rounds, lan)
    if swarm:
        overrides["network.swarm"] = swarm
    if detached:
        detach(config, overrides, json=json)
        return
    node = start(config, overrides, json=json, debug=debug, stop_on_eof=stop_on_eof)
    from node.monitor.live import Stages

    with closing(Stages(quiet=json)) as stages:
        stages.begin("looking at the config and this machine")
        from node.run.preflight import check_start

        check_start(node.config, node.folder)
        stages.begin("loading torch and transformers")
        from node.run.commands import run_join

        run_join(node.config, node.folder, RunOptions(json, swarm or ""), stages)
