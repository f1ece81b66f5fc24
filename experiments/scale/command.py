"""``python -m experiments scale``: what a node spends in a swarm of ten or of ten thousand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import DebugOption, JsonOption, print_json
from node.errors import UsageError
from node.monitor.output import say

if TYPE_CHECKING:
    from rich.progress import TaskID

    from experiments.scale.figures import Figures
    from experiments.scale.scenario import Scenario
    from experiments.scale.settings import Settings

SIZES, QUICK_SIZES = (10, 100, 1_000, 10_000), (10, 50)
EPOCHS, QUICK_EPOCHS = 20, 6
TOLD_BY_EPOCH = ("growth", "partition")


def command(
    nodes: Annotated[
        list[int] | None,
        typer.Option(
            "--nodes",
            min=2,
            max=100_000,
            help="Size of a swarm; may be repeated. Left out: 10, 100, 1000 and 10000.",
            show_default=False,
        ),
    ] = None,
    scenarios: Annotated[
        list[str] | None,
        typer.Option(
            "--scenario",
            metavar="NAME",
            help="steady, churn, partition, loss or growth; may be repeated. Left out: steady.",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, help="Epochs. Left out: 20.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of everything that is drawn.")] = 0,
    turns: Annotated[
        int, typer.Option("--turns", min=1, max=4, help="Turns of a member in an epoch, of four.")
    ] = 1,
    pulls: Annotated[
        int, typer.Option("--pulls", min=1, max=64, help="Frames a member pulls in an epoch.")
    ] = 2,
    quick: Annotated[
        bool, typer.Option("--quick", help="10 and 50 nodes, 6 epochs: some seconds.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Draw a chart: .png, .svg or .pdf.", show_default=False),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Simulate swarms of many sizes, and say what they cost a node and whether they work.

    Every member runs the code of a real one on a clock of the simulation's. Judge and learner are
    stand-ins, and what a call of the hash table costs is modelled. But for CPU time the figures are
    a function of the options.
    """
    from experiments.scale.settings import Settings
    from node.monitor.history import ENDINGS

    if out is not None and out.suffix.lower() not in ENDINGS:
        raise UsageError("--out", out, f"Name a file that ends in {', '.join(ENDINGS)}.")
    chosen = _scenarios(scenarios or ["steady"])
    sizes = sorted(set(nodes or (QUICK_SIZES if quick else SIZES)))
    length = epochs or (QUICK_EPOCHS if quick else EPOCHS)
    wanted = [Settings(size, length, seed, turns, pulls) for size in sizes]
    runs = _simulate([(settings, scenario) for scenario in chosen for settings in wanted])
    if out is not None:
        from experiments.scale.chart import draw

        draw(runs, out)
    if json:
        from experiments.scale.report import as_json

        print_json(
            {"settings": asdict(wanted[0]) | {"nodes": sizes}, "runs": list(map(as_json, runs))}
        )
        return
    _show(runs)
    if out is not None:
        say(f"wrote {out}")


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    """Those that are meant, each once.

    Raises:
        UsageError: there is none of a name.
    """
    from experiments.scale.scenario import SCENARIOS

    for name in names:
        if name not in SCENARIOS:
            raise UsageError("--scenario", repr(name), f"Name one of {', '.join(SCENARIOS)}.")
    return [SCENARIOS[name] for name in dict.fromkeys(names)]


def _simulate(wanted: Sequence[tuple[Settings, Scenario]]) -> list[Figures]:
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from experiments.scale.swarm import run
    from node.monitor.record import Terminal

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Terminal(stderr=True)
    found = []
    with Progress(*columns, console=console) as progress:
        for settings, scenario in wanted:
            title = f"{scenario.name}, {settings.nodes:,} nodes"
            row = progress.add_task(title, total=float(settings.epochs))

            def tell(epoch: int, part: float, row: TaskID = row) -> None:
                progress.update(row, completed=epoch + part)

            found.append(run(settings, scenario, tell))
    return found


def _show(runs: Sequence[Figures]) -> None:
    from experiments.scale.report import conditions, course, summary
    from experiments.scale.scenario import SCENARIOS
    from node.monitor.record import Terminal

    console = Terminal()
    for name, group in groupby(runs, lambda figures: figures.scenario):
        of_one = list(group)
        console.print(f"{name}: {SCENARIOS[name].about}")
        console.print(summary(of_one))
        console.print()
        for figures in of_one:
            if name in TOLD_BY_EPOCH:
                console.print(f"{name}, up to {figures.settings.nodes:,} nodes")
                console.print(course(figures))
                console.print()
    console.print(conditions(runs[0].settings), highlight=False)
