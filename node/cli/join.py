"""``swarm-node join``, ``bootstrap`` and ``observe``: run a node, here or in the background."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from node.cli.options import (
    STOP_ON_EOF,
    ConfigOption,
    JsonOption,
    LanOption,
    LoadedNode,
    PeersOption,
    PublicOption,
    SetOption,
    SnapshotOption,
    debugging,
    find_config,
    open_node,
    overrides_of,
    print_json,
    waiting,
)
from node.config.overrides import Overrides
from node.errors import UsageError
from node.monitor.logs import ERROR, start_logging
from node.monitor.output import as_typed, drop_failed_output, say
from node.threads import check_semaphores

NEW_FOLDER = Path("swarm-run")
WAY_BACK = ("network.lan", "network.peers")


@contextmanager
def started(
    given: Path | None, overrides: Overrides, *, json: bool = False
) -> Iterator[tuple[LoadedNode, Any]]:
    """Open the node of :func:`ready` and its log; yield it and its start's stages."""
    from node.monitor.live import Stages

    node = ready(given, overrides, json=json)
    node.folder.check_free()
    start_logging(node.folder.log, node.config.monitor.log_level, debug=debugging())
    drop_failed_output()  # the log outlives the output
    if STOP_ON_EOF in sys.argv:
        interrupt_on_eof()
    with closing(Stages(quiet=json)) as stages:
        stages.begin("checking the config and this machine")
        yield node, stages


def ready(given: Path | None, overrides: Overrides, *, json: bool = False) -> LoadedNode:
    """Read the node's config, or create a node in ./swarm-run, with an identity.

    A new config stores only where the peers are; the other overrides are for this run.
    """
    from node.config.config import Config
    from node.run.preflight import open_identity, prepare

    check_semaphores()
    path = find_config(given)
    if path is None:
        Config.with_overrides(overrides)  # a wrong one creates no node
        network = {key: value for key, value in overrides.items() if key in WAY_BACK}
        folder, identity = prepare(NEW_FOLDER, network)
        path = folder.config
        message = f"created a node in ./{NEW_FOLDER}: {identity.peer_id}"
        say(f"{message}; its settings are in {path}", err=json)
    node = open_node(path, overrides)
    identity, is_new = open_identity(node.folder)
    if is_new:
        say(f"created an identity: {identity.peer_id}, stored in {node.folder.identity}", err=json)
    return node


def interrupt_on_eof() -> None:
    """Interrupt this process when standard input closes, even if the parent is killed."""

    def wait() -> None:
        # Not sys.stdin: a blocked thread would hold its lock while the process ends.
        while os.read(0, 4096):
            pass
        if sys.platform == "win32":  # where ``os.kill`` ends a process at once
            signal.raise_signal(signal.SIGINT)
        else:
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, name="stop-on-eof", daemon=True).start()


OPTION = "--detach"
DetachOption = Annotated[
    bool,
    typer.Option(OPTION, help="Run in the background once the node is up; messages go to its log."),
]


def detach(
    given: Path | None, overrides: Overrides, *, json: bool = False, member: bool = True
) -> None:
    """Start this command line in the background; print how to follow it once it runs.

    ``member`` says whether peers can join through it. Raises UsageError under torchrun, and
    typer.Exit with the node's exit status if it ended before it ran.
    """
    from node.distributed.torchrun import Launch
    from node.run.background import start_detached

    if Launch.read():
        raise UsageError(OPTION, "under torchrun", "Start torchrun itself in the background.")
    node = ready(given, overrides, json=json)
    arguments = [argument for argument in sys.argv[1:] if argument not in (OPTION, "--json")]
    with waiting("waiting until the node runs; Ctrl-C ends it"):
        process = start_detached(arguments, node.folder)
    if process.exit_code:
        message = process.last_words or "no message"
        if not message.startswith(ERROR):
            message = f"{ERROR}the node ended with status {process.exit_code}: {message}"
            message += f". Its output is in {node.folder.log}."
        say(message, err=True)
        raise typer.Exit(process.exit_code)
    status = process.status or {}
    addresses, public = status.get("addresses", []) if member else [], status.get("public")
    if json:
        fields = {"pid": process.pid, "running": process.exit_code is None, "addresses": addresses}
        print_json({**fields, "public": public, "log": str(node.folder.log)})
    elif process.status is None:
        say(f"the node has ended: {process.last_words}")
    else:
        say(f"the node runs in the background, as process {process.pid}")
        for address in addresses:
            say(f"others join with: swarm-node join --peers {address}")
        if public:
            say(f"the swarm's page: {public}")
        config = quote(str(node.path))
        say(as_typed(f"follow it with: swarm-node logs -f --config {config}"))
        say(as_typed(f"stop it with: swarm-node stop --config {config}"))


def join_command(
    peers: PeersOption = None,
    lan: LanOption = False,
    config: ConfigOption = None,
    mix: Annotated[
        str | None,
        typer.Option(metavar="OWN/EXTERNAL", help="Local and peer groups in an update, as in 4/4."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Total rounds after which the node stops; 0: unlimited.")
    ] = None,
    swarm: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Swarm to train in; a node of another swarm moves there with its policy.",
        ),
    ] = None,
    accept: Annotated[
        bool,
        typer.Option("--accept", help="Accept the settings that the baseline evaluation suggests."),
    ] = False,
    baseline: Annotated[
        bool,
        typer.Option(
            "--baseline/--no-baseline",
            help="Evaluate a new policy on the tasks first, for at most two minutes.",
        ),
    ] = True,
    assignments: SetOption = None,
    json: JsonOption = False,
    detached: DetachOption = False,
) -> None:
    """Join a swarm and train; resume where the run folder stopped.

    Without a config it creates a node in ./swarm-run. Without peers it trains alone until peers
    find it. Ctrl-C ends it cleanly.
    """
    from node.distributed.torchrun import Launch
    from node.run.status import RunOptions

    if (launch := Launch.read()) and launch.rank:
        from node.run.node import help_learn

        help_learn(launch)
        return

    overrides = overrides_of(assignments, peers, mix, rounds, lan)
    if swarm:
        overrides["network.swarm"] = swarm
    if detached:
        detach(config, overrides, json=json)
        return
    with started(config, overrides, json=json) as (node, stages):
        from node.run.preflight import check_start

        check_start(node.config, node.folder)
        stages.begin("loading torch and transformers")
        from node.run.node import run_join

        options = RunOptions(json, swarm or "", baseline, accept, node.path)
        run_join(node.config, node.folder, options, stages)


def bootstrap_command(
    peers: PeersOption = None,
    lan: LanOption = False,
    config: ConfigOption = None,
    public: PublicOption = None,
    snapshot: SnapshotOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    detached: DetachOption = False,
) -> None:
    """Run a bootstrap node: serve a swarm's manifest and records without training.

    Ctrl-C ends it cleanly.
    """
    from node.run.status import RunOptions

    overrides = overrides_of(assignments, peers, lan=lan, public=public, snapshot=snapshot)
    if detached:
        detach(config, overrides, json=json)
        return
    with started(config, overrides, json=json) as (node, stages):
        from node.run.preflight import check_places
        from node.run.untrained import run_untrained

        check_places(node.config, node.folder)
        run_untrained("bootstrap", node.config, node.folder, RunOptions(json=json), stages)


PATIENCE_SECONDS = 30.0  # for a named peer to answer, unless a config says otherwise


def observe_command(
    peers: PeersOption = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            "-c",
            help="Config or folder of earlier counts to continue. [default: a temporary folder]",
        ),
    ] = None,
    public: PublicOption = None,
    snapshot: SnapshotOption = None,
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds until the end; 0: unlimited.")
    ] = 0.0,
    assignments: SetOption = None,
    json: JsonOption = False,
    detached: DetachOption = False,
) -> None:
    """Show the page of a swarm without training or being a member.

    The command serves the page only on this machine, on port 8710 or the next free one, unless you
    give --public or --snapshot. Ctrl-C ends it cleanly.
    """
    overrides = overrides_of(assignments, peers, public=public, snapshot=snapshot)
    if detached:
        if config is None:
            raise UsageError(OPTION, "without a folder", "Name one for its page: --config DIR.")
        detach(config, overrides, json=json, member=False)
        return
    with ExitStack() as stack:
        if config is None:
            from node.run.preflight import prepare

            folder = stack.enter_context(TemporaryDirectory(prefix="swarm-watch-"))
            prepare(Path(folder), {"network.start_timeout": PATIENCE_SECONDS})
            config = Path(folder)
        context = started(config, overrides, json=json)
        node, stages = stack.enter_context(context)
        from node.run.preflight import check_places
        from node.run.status import RunOptions
        from node.run.untrained import check_peers, run_untrained

        check_peers(node.config, node.folder)
        check_places(node.config, node.folder)
        options, limit = RunOptions(json=json), seconds or math.inf
        run_untrained("observe", node.config, node.folder, options, stages, limit)
