"""``swarm-node seed``: a peer that lets others find each other."""

from __future__ import annotations

from contextlib import closing

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
from node.cli.page_options import PublicOption, SnapshotOption, page_overrides
from node.cli.starting import start


def command(
    peers: PeersOption = None,
    lan: LanOption = False,
    config: ConfigOption = None,
    public: PublicOption = None,
    snapshot: SnapshotOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
    detached: DetachOption = False,
    stop_on_eof: StopOption = False,
) -> None:
    """Serve a swarm's manifest and records, and train nothing. Ctrl-C ends it cleanly."""
    from node.run.foreground import RunOptions

    overrides = overrides_of(assignments, peers, lan=lan) | page_overrides(public, snapshot)
    if detached:
        detach(config, overrides, json=json)
        return
    node = start(config, overrides, json=json, debug=debug, stop_on_eof=stop_on_eof)
    from node.monitor.live import Stages

    with closing(Stages(quiet=json)) as stages:
        stages.begin("looking at the config and this machine")
        from node.run.commands import run_seed
        from node.run.preflight import check_places

        check_places(node.config, node.folder)
        run_seed(node.config, node.folder, RunOptions(json=json), stages)
