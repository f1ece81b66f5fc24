"""Runs as lines of bars, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from node.monitor.history import MEASURES, Curve, Measure
from node.monitor.printable import printable
from node.monitor.record import RoundRecord, bar_row, bars_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure


COLOURS = ("blue", "dark_orange", "green", "red", "magenta", "yellow", "cyan", "white")
WIDEST = 64
"""Bars of a line, where the terminal has room for them."""
NARROWEST = 12
FIGURES = 48
"""Columns that names of measures and figures take beside the bars."""
LONGEST_NAME = 24


def run_table(runs: Mapping[str, Sequence[RoundRecord]], window: int, console: Console) -> Table:
    """Runs by name, a line for each measure and run; lines of one measure have one scale.

    Args:
        window: rounds that curves are smoothed over.
        console: decides how many bars there are, and which; it has to print the table as well.
    """
    names = max(min(cell_len(name), LONGEST_NAME) for name in runs) + 2 if len(runs) > 1 else 0
    rounds = _rounds(runs, console.width - FIGURES - names)
    window = max(window, round((rounds[-1] - rounds[0]) / len(rounds)))
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    if names:
        table.add_column("run", overflow="fold", max_width=LONGEST_NAME)
    table.add_column(f"rounds {rounds[0]:.0f} to {rounds[-1]:.0f}", no_wrap=True)
    for title in ("first", "last", "highest"):
        table.add_column(title, justify="right", no_wrap=True)
    for measure in MEASURES:
        _add(table, measure, runs, window, rounds, bars_for(console))
    return table


def _rounds(runs: Mapping[str, Sequence[RoundRecord]], room: int) -> NDArray[np.float64]:
    """The rounds at which bars stand, from the first to the last of all runs."""
    first = min(history[0].round for history in runs.values())
    last = max(history[-1].round for history in runs.values())
    return np.linspace(first, last, min(max(room, NARROWEST), WIDEST, last - first + 1))


def _add(
    table: Table,
    measure: Measure,
    runs: Mapping[str, Sequence[RoundRecord]],
    window: int,
    rounds: NDArray[np.float64],
    bars: str,
) -> None:
    curves = {
        name: Curve.measured(measure, history).smoothed(window) for name, history in runs.items()
    }
    top = max((float(c.values.max()) for c in curves.values() if len(c.values)), default=0.0)
    for number, (name, curve) in enumerate(curves.items()):
        style = COLOURS[number % len(COLOURS)] if len(runs) > 1 else ""
        title = measure.title if number == 0 else ""
        cells = [Text(title), *([Text(name, style)] if len(runs) > 1 else [])]
        figures = (
            [curve.values[0], curve.values[-1], curve.values.max()] if len(curve.values) else []
        )
        shown = [format(float(figure), measure.style) for figure in figures]
        table.add_row(*cells, Text(bar_row(curve.at(rounds), top, bars), style), *shown)
    if len(runs) > 1:
        table.add_section()


def new_figure(width: float, height: float) -> Figure:
    """An empty picture of so many inches, that no window and no global state knows of."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


ENDINGS = (".png", ".svg", ".pdf")
"""Of the files that a chart can be written to."""
COLUMNS = 3
CYCLE = 10
"""Colours that are easily told apart."""
FEW = 24
"""Points that are marked each, since so few make a thin line, and one makes none."""


def draw_runs(runs: Mapping[str, Sequence[RoundRecord]], window: int, path: Path) -> None:
    """Write a chart of runs, by name, to ``path``, whose ending is one of :data:`ENDINGS`.

    Args:
        window: rounds that curves are smoothed over.

    Raises:
        OSError: it cannot be written.
    """
    curves = {
        measure: {name: Curve.measured(measure, history) for name, history in runs.items()}
        for measure in MEASURES
    }
    measured = [m for m in MEASURES if any(len(c.rounds) for c in curves[m].values())]
    rows = -(-len(measured) // COLUMNS)
    figure = new_figure(4.2 * COLUMNS, 2.6 * rows + 0.6)
    panels = figure.subplots(rows, COLUMNS, squeeze=False, sharex=True).flat
    lines: list[Any] = []
    for axes, measure in zip(panels, measured, strict=False):
        lines = _panel(axes, curves[measure], window)
        axes.set_title(measure.title)
        axes.xaxis.set_tick_params(labelbottom=True)
    for axes in panels[len(measured) :]:
        axes.set_axis_off()
    figure.supxlabel(f"round (curves: mean of {window} rounds)" if window > 1 else "round")
    columns = min(len(runs), 6)
    names = [_plain(name) for name in runs]
    figure.legend(lines, names, loc="outside upper center", ncols=columns, frameon=False)
    figure.savefig(path, dpi=130)


def _panel(axes: Any, curves: Mapping[str, Curve], window: int) -> list[Any]:
    """Draw one measure; a line for each run, that of a run without values being empty."""
    lines = []
    for number, curve in enumerate(curves.values()):
        colour, smooth = _colour(number, len(curves)), curve.smoothed(window)
        if len(curves) == 1 and window > 1:
            axes.plot(curve.rounds, curve.values, color=colour, linewidth=0.7, alpha=0.3)
        mark = "." if len(curve.rounds) <= FEW else None
        lines += axes.plot(smooth.rounds, smooth.values, color=colour, marker=mark, linewidth=1.5)
    axes.grid(alpha=0.25)
    axes.set_ylim(bottom=0)
    return lines


def _colour(number: int, count: int) -> Any:
    from matplotlib import colormaps

    return f"C{number}" if count <= CYCLE else colormaps["turbo"](number / (count - 1))


def _plain(name: str) -> str:
    """A name as it is: matplotlib reads formulas between dollars, and hides what begins with
    an underscore."""
    shown = printable(name).replace("$", r"\$")
    return f"./{shown}" if shown.startswith("_") else shown
