"""``swarm-node demo``: a whole swarm on this machine."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from node.cli.options import DebugOption, JsonOption
from node.config.overrides import parse_mix

NODES, LARGE_NODES = 4, 2


def demo_command(
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            min=1,
            max=64,
            help="Nodes that train. Left out: 4, or 2 where each has a vLLM of its own.",
            show_default=False,
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=0, help="Rounds of each node; 0: until Ctrl-C.")
    ] = 150,
    mix: Annotated[
        str,
        typer.Option("--mix", metavar="OWN/EXTERNAL", help="Groups in an update."),
    ] = "2/6",
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="New folder for all of it. Left out: under ./demo-run.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**62, help="Seeds the nodes.")] = 0,
    engine: Annotated[
        str,
        typer.Option("--engine", metavar="KIND", help="What samples: transformers, vllm, …"),
    ] = "transformers",
    transport: Annotated[
        str | None,
        typer.Option(
            "--transport",
            metavar="KIND",
            help="What they meet over: hivemind, libp2p, …, or mixed for both of these.",
            show_default=False,
        ),
    ] = None,
    catalogue: Annotated[
        str,
        typer.Option(
            "--catalogue", metavar="NAME", help="What they practise: tiny, or games of many turns."
        ),
    ] = "tiny",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start a seed and several nodes with tiny models, show them live, and sum up.

    It says how to join from another terminal; --rounds 0 leaves all the time for that.
    """
    from node.config.registry import ENGINES
    from node.demo.run import DEFAULT_TRANSPORT, DemoSettings, run, table
    from node.monitor.terminal import Terminal

    local, external = parse_mix(mix)
    nodes = nodes or (LARGE_NODES if ENGINES.load(engine).beside else NODES)
    over = transport or DEFAULT_TRANSPORT
    settings = DemoSettings(nodes, rounds, local, external, seed, engine, over, catalogue)
    folder = run_dir or Path("demo-run") / time.strftime("%Y%m%d-%H%M%S")
    summary = run(settings, folder, Terminal(stderr=json))
    if json:
        typer.echo(summary.as_json())
        return
    console = Terminal()
    console.print(table(summary))
    console.print(f"the chart is {summary.chart}")
