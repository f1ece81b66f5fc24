"""``swarm-node watch``: look at a swarm without belonging to it."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from node.cli.common import (
    DebugOption,
    JsonOption,
    PeersOption,
    SetOption,
    StopOption,
    overrides_of,
)
from node.cli.detaching import OPTION, DetachOption, detach
from node.cli.page_options import PublicOption, SnapshotOption, page_overrides
from node.cli.starting import start
from node.errors import UsageError

PATIENCE_SECONDS = 30.0
"""In which one of the peers named has to answer, where no config says otherwise."""


def command(
    peers: PeersOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="A config or folder of its own, to go on from what was counted before. Left out: "
            "a folder that is gone afterwards.",
            show_default=False,
        ),
    ] = None,
    public: PublicOption = None,
    snapshot: SnapshotOption = None,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=0, help="End after so many seconds of looking; 0: never."),
    ] = 0.0,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    detached: DetachOption = False,
    stop_on_eof: StopOption = False,
) -> None:
    """Show the page of a swarm without training, or being a member. Ctrl-C ends it cleanly.

    It is served on this machine alone, port 8710 or the next free, unless --public or --snapshot
    is given.
    """
    overrides = overrides_of(assignments, peers) | page_overrides(public, snapshot)
    if detached:
        if config is None:
            raise UsageError(OPTION, "without a folder", "Name one for its page: --config DIR.")
        detach(config, overrides, json=json, member=False)
        return
    with ExitStack() as stack:
        if config is None:
            from node.run.preflight import prepare

            place = stack.enter_context(TemporaryDirectory(prefix="swarm-watch-"))
            prepare(Path(place), {"network.start_timeout": PATIENCE_SECONDS})
            config = Path(place)
        node = start(config, overrides, json=json, debug=debug, stop_on_eof=stop_on_eof)
        from node.monitor.live import Stages

        stages = stack.enter_context(closing(Stages(quiet=json)))
        stages.begin("looking at the config and this machine")
        from node.run.commands import check_peers, run_watch
        from node.run.foreground import RunOptions
        from node.run.preflight import check_places

        check_peers(node.config, node.folder)
        check_places(node.config, node.folder)
        run_watch(node.config, node.folder, RunOptions(json=json), stages, seconds)
