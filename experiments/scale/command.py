"""``python -m experiments scale``: cost per node in swarms of ten to ten thousand nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from node.cli.options import JsonOption, print_json
from node.errors import UsageError
from node.monitor.output import say

if TYPE_CHECKING:
    from rich.progress import TaskID

    from experiments.scale.figures import Figures
    from experiments.scale.settings import Scenario, Settings

SIZES, QUICK_SIZES = (10, 100, 1_000, 10_000), (10, 50)
EPOCHS, QUICK_EPOCHS = 20, 6
PER_EPOCH = ("growth", "partition")


Nodes = Annotated[
    list[int] | None,
    typer.Option(
        "--nodes",
        min=2,
        max=100_000,
        help="Nodes per swarm; may be repeated. Default: 10, 100, 1000 and 10000.",
        show_default=False,
    ),
]
Scenarios = Annotated[
    list[str] | None,
    typer.Option(
        "--scenario",
        metavar="NAME",
        help="Scenario: steady, churn, partition, loss or growth; may be repeated. Default: "
        "steady.",
        show_default=False,
    ),
]
SLOTS = "Time slots of a minute. Default: 20."
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help=SLOTS, show_default=False)]
Seed = Annotated[int, typer.Option("--seed", help="Random seed.")]
TURNS = "Turns of a member per time slot."
Turns = Annotated[int, typer.Option("--turns", min=1, max=4, help=TURNS)]
PULLS = "Frames that a member pulls per time slot."
Pulls = Annotated[int, typer.Option("--pulls", min=1, max=64, help=PULLS)]
QUICK = "10 and 50 nodes, 6 time slots: some seconds."
Quick = Annotated[bool, typer.Option("--quick", help=QUICK)]
OUT = "Chart file: .png, .svg or .pdf."
Out = Annotated[Path | None, typer.Option("--out", help=OUT, show_default=False)]


def command(
    nodes: Nodes = None,
    scenarios: Scenarios = None,
    epochs: Epochs = None,
    seed: Seed = 0,
    turns: Turns = 1,
    pulls: Pulls = 2,
    quick: Quick = False,
    out: Out = None,
    json: JsonOption = False,
) -> None:
    """Simulate swarms of several sizes, and report the cost per node and the exchange of groups.

    Every member runs the code of a real one on a simulated clock. Verifier and learner are stubs,
    and the cost of DHT calls is modeled. All figures except CPU time are a function of the options.
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
    from experiments.scale.figures import as_json, draw

    if out is not None:
        draw(runs, out)
    if json:
        print_json(
            {"settings": asdict(wanted[0]) | {"nodes": sizes}, "runs": list(map(as_json, runs))}
        )
        return
    _show(runs)
    if out is not None:
        say(f"wrote {out}")


def _scenarios(names: Sequence[str]) -> list[Scenario]:
    """Return the named scenarios, each once; raise UsageError for an unknown name."""
    from experiments.scale.settings import SCENARIOS

    for name in names:
        if name not in SCENARIOS:
            raise UsageError("--scenario", repr(name), f"Name one of {', '.join(SCENARIOS)}.")
    return [SCENARIOS[name] for name in dict.fromkeys(names)]


def _simulate(wanted: Sequence[tuple[Settings, Scenario]]) -> list[Figures]:
    from rich import progress as bars

    from experiments.scale.swarm import run
    from node.monitor.record import Terminal

    columns = (bars.TextColumn("{task.description}"), bars.BarColumn(), bars.TaskProgressColumn())
    times = (bars.TimeElapsedColumn(), bars.TimeRemainingColumn())
    console = Terminal(stderr=True)
    found = []
    with bars.Progress(*columns, *times, console=console) as progress:
        for settings, scenario in wanted:
            title = f"{scenario.name}, {settings.nodes:,} nodes"
            row = progress.add_task(title, total=float(settings.epochs))

            def update(epoch: int, part: float, row: TaskID = row) -> None:
                progress.update(row, completed=epoch + part)

            found.append(run(settings, scenario, update))
    return found


def _show(runs: Sequence[Figures]) -> None:
    from experiments.scale.figures import conditions, course, summary
    from experiments.scale.settings import SCENARIOS
    from node.monitor.record import Terminal

    console = Terminal()
    for name, group in groupby(runs, lambda figures: figures.scenario):
        of_one = list(group)
        console.print(f"{name}: {SCENARIOS[name].about}")
        console.print(summary(of_one))
        console.print()
        for figures in of_one:
            if name in PER_EPOCH:
                console.print(f"{name}, up to {figures.settings.nodes:,} nodes")
                console.print(course(figures))
                console.print()
    console.print(conditions(runs[0].settings), highlight=False)
