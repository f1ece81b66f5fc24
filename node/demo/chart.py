"""Reward by round, a line a node and the mean over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from node.monitor.charts import new_figure
from node.monitor.history import Curve
from node.monitor.record import RoundRecord

WINDOW = 9


def draw(records: Mapping[str, Sequence[RoundRecord]], path: Path) -> None:
    """Write a PNG with own reward (smoothed) and held-out reward of every node, by round."""
    figure = new_figure(10, 4.2)
    left, right = figure.subplots(1, 2, sharey=True)
    own, heldout = (
        {
            name: [(r.round, value) for r in rows if (value := getattr(r, figure)) is not None]
            for name, rows in records.items()
        }
        for figure in ("reward_own", "reward_eval")
    )
    _panel(left, own, f"own rollouts (mean of {WINDOW} rounds)", smooth=True)
    _panel(right, heldout, "held-out questions", smooth=False)
    left.set_ylabel("reward")
    right.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)


def _panel(
    axes: Any, lines: Mapping[str, list[tuple[int, float]]], title: str, *, smooth: bool
) -> None:
    by_round: dict[int, list[float]] = {}
    for name, points in lines.items():
        for number, value in points:
            by_round.setdefault(number, []).append(value)
        axes.plot(*_xy(points, smooth), linewidth=1, alpha=0.55, label=name)
    # A round that some nodes have not reached would move the mean for no reason of learning.
    whole = [(n, sum(v) / len(v)) for n, v in sorted(by_round.items()) if len(v) == len(lines)]
    axes.plot(*_xy(whole, smooth), color="black", linewidth=2.2, label="mean")
    axes.set_title(title)
    axes.set_xlabel("round")
    axes.grid(alpha=0.25)
    axes.set_ylim(bottom=0)


def _xy(points: list[tuple[int, float]], smooth: bool) -> tuple[Any, Any]:
    curve = Curve.of(points).smoothed(WINDOW if smooth else 1)
    return curve.rounds, curve.values
