"""Reward by round with bands over seeds, and what it adds up to beside the paper's figures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.measures import Recordings, Summary
from experiments.recording import Recording
from experiments.regime_summary import RegimeSummary
from node.monitor.history import new_figure

PAPER = {"8/0": 561.79, "6/2": 854.43, "4/4": 1093.31, "2/6": 945.87}
"""Cumulative rewards of arXiv 2509.08721, section 5."""
SMOOTHED_OVER = 20
"""Of all rounds, the part that a curve's window is long."""
GREY = "0.75"
PANELS = 4
"""Side by side."""


def draw(
    summaries: Sequence[Summary], recordings: Recordings, nodes: Collection[int], path: Path
) -> None:
    """Write the PNG of an experiment in which the rewards of these nodes are compared."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    _curves(left, summaries, recordings, nodes)
    left.set_title("reward of own rollouts, band: standard error over seeds")
    left.legend(frameon=False, fontsize="small")
    _bars(right, summaries)
    figure.savefig(path, dpi=130)


def draw_regimes(
    regimes: Sequence[RegimeSummary], recordings: Sequence[Recordings], path: Path
) -> None:
    """Write a PNG with a panel for each regime."""
    rows = -(-len(regimes) // PANELS)
    figure = new_figure(3.4 * PANELS, 2.8 * rows)
    panels = figure.subplots(rows, PANELS, squeeze=False).flat
    for axes, summary, runs in zip(panels, regimes, recordings, strict=False):
        _curves(axes, summary.arms, runs, summary.judged)
        axes.set_title(summary.regime)
    for axes in panels[len(regimes) :]:
        axes.set_axis_off()
    panels[0].legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)


def _curves(
    axes: Any, summaries: Sequence[Summary], recordings: Recordings, nodes: Collection[int]
) -> None:
    for number, summary in enumerate(summaries):
        runs = [recordings[summary.arm, seed] for seed in summary.seeds]
        _curve(axes, summary.arm, runs, nodes, f"C{number}")
    axes.set_xlabel("round")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)


def _curve(
    axes: Any, name: str, runs: Sequence[Recording], nodes: Collection[int], colour: str
) -> None:
    rewards = np.array([run.rewards(nodes) for run in runs])
    window = max(1, rewards.shape[1] // SMOOTHED_OVER)
    smooth = np.array([np.convolve(row, np.ones(window) / window, "valid") for row in rewards])
    x = np.arange(smooth.shape[1]) + 1 + (window - 1) / 2
    mean = smooth.mean(0)
    axes.plot(x, mean, color=colour, linewidth=1.8, label=name)
    if len(runs) > 1:
        error = smooth.std(0, ddof=1) / np.sqrt(len(runs))
        axes.fill_between(x, mean - error, mean + error, color=colour, alpha=0.2, linewidth=0)


def _bars(axes: Any, summaries: Sequence[Summary]) -> None:
    """Cumulative rewards as multiples of the reference's."""
    for place, summary in enumerate(summaries):
        factor = summary.comparison.factor if summary.comparison else None
        height = factor.mean if factor else 1.0
        _bar(axes, place - 0.2, height, f"C{place}", factor.error if factor else None)
        if summary.arm in PAPER:
            _bar(axes, place + 0.2, PAPER[summary.arm] / PAPER["8/0"], GREY, None)
    axes.bar(0, 0, color=GREY, label="paper (Qwen2.5-0.5B, 2000 rounds)")
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    names = [summary.arm.replace(" ", "\n") for summary in summaries]
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize="small")
    axes.set_title("cumulative reward, multiples of the reference's")
    axes.legend(frameon=False, fontsize="small")


def _bar(axes: Any, place: float, height: float, colour: str, error: float | None) -> None:
    axes.bar(place, height, 0.4, color=colour, yerr=error)
    axes.text(place, height, f"{height:.2f}", ha="center", va="bottom", fontsize="small")
