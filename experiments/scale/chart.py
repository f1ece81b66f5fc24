"""What a node spends by the size of its swarm, and who found outside groups when."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from experiments.scale.figures import Figures
from experiments.scale.tally import Kind
from node.monitor.history import new_figure

STYLES = {Kind.TABLE: "-", Kind.GOSSIP: "--", Kind.FRAMES: ":"}


def draw(runs: Sequence[Figures], path: Path) -> None:
    """Write a picture of these runs, sorted by scenario; the ending says of which kind."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    for number, (name, group) in enumerate(groupby(runs, lambda run: run.scenario)):
        _spent(left, name, list(group), f"C{number}")
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlabel("nodes")
    left.set_title("KB of a node and epoch (- hash table, -- gossip, : frames)")
    for run in runs:
        shares = [100 * epoch.found for epoch in run.epochs]
        label = f"{run.scenario}, {run.settings.nodes:,}"
        right.plot(range(1, len(shares) + 1), shares, label=label, linewidth=1.4)
    right.set_xlabel("epoch")
    right.set_ylim(0, 105)
    right.set_title("% of nodes that got outside groups in an epoch")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)


def _spent(axes: Any, name: str, runs: Sequence[Figures], colour: str) -> None:
    sizes = [run.settings.nodes for run in runs]
    for kind, style in STYLES.items():
        spent = [run.bytes(kind) / 1000 for run in runs]
        label = name if kind is Kind.TABLE else None
        axes.plot(sizes, spent, style, color=colour, marker="o", markersize=3, label=label)
