"""Runs as lines of bars, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from node.monitor.curves import MEASURES, Curve, Measure
from node.monitor.record import RoundRecord
from node.monitor.sparkline import bar_row, bars_for

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
