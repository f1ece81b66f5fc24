"""The chart of an experiment with methods: each beside the default, with its intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.monitor.history import new_figure

if TYPE_CHECKING:
    from experiments.method_report import Worths
    from node.evaluation.comparison import ScoreEstimate

APART = 0.22
"""Of the marks of one method, in rows."""


def draw(names: Sequence[str], worths: Worths, path: Path) -> None:
    """Write a PNG with a row for each method, and for each length of answers two panels: ratios of
    reward, and differences on held-out tasks."""
    figure = new_figure(7.6 * len(worths), 1.8 + 0.42 * len(names))
    panels = figure.subplots(1, 2 * len(worths), sharey=True, squeeze=False)[0]
    for place, (length, found) in enumerate(worths.items()):
        done = {row: found[name] for row, name in enumerate(names) if name in found}
        ratios, held = panels[2 * place], panels[2 * place + 1]
        _panel(ratios, {row: worth.factors for row, worth in done.items()}, 1.0)
        _panel(held, {row: worth.differences for row, worth in done.items()}, 0.0)
        ratios.set_title(f"{length}: reward / the default's")
        held.set_title(f"{length}: reward - the default's")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=130)


def _panel(axes: Any, rows: Mapping[int, Mapping[str, ScoreEstimate]], nothing: float) -> None:
    """Means with their 95 % intervals, those of a row one below the other."""
    kinds = list(next(iter(rows.values()), ()))
    for number, kind in enumerate(kinds):
        estimates = [row[kind] for row in rows.values()]
        axes.errorbar(
            [estimate.mean for estimate in estimates],
            [place + APART * (number - (len(kinds) - 1) / 2) for place in rows],
            xerr=[estimate.margin or 0.0 for estimate in estimates],
            fmt="o",
            markersize=4,
            color=f"C{number}",
            label=kind,
        )
    axes.axvline(nothing, color="0.5", linewidth=0.8)
    axes.grid(alpha=0.25, axis="x")
    if kinds:
        axes.legend(frameon=False, fontsize="small")
