"""Runs as a picture of small panels, one a measure, each run in one colour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.monitor.canvas import new_figure
from node.monitor.curves import MEASURES, Curve
from node.monitor.printable import printable
from node.monitor.record import RoundRecord

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
