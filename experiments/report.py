"""Tables, charts and JSON results of the experiments ``sapo`` and ``regimes``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.arms import AUTO
from experiments.measures import (
    FLOOR,
    Recordings,
    RegimeSummary,
    RegimeVerdict,
    Summary,
    summarize,
    summarize_regime,
)
from experiments.recording import Recording
from experiments.regimes import EQUAL
from experiments.run import Plan, read_runs, run_missing
from experiments.settings import Settings
from node.evaluation.comparison import ScoreEstimate
from node.monitor.history import new_figure
from swarm.common.util import counted

COLUMNS = (
    *("arm", "seeds", "cumulative reward", "factor", "gain (95 %)", "factor at equal tokens"),
    *("factor at equal CPU", "held-out", "held-out gain", "pass@8", "informative", "peer groups"),
    *("entropy", "variance", "CPU s"),
)
NARROW = ("arm", "cumulative reward", "factor", "gain (95 %)", "factor at equal tokens", "held-out")


def run_sapo(plan: Plan, root: Path, console: Console) -> tuple[Summary, ...]:
    """Run what is missing in ``root``, then write results, table and chart."""
    folder = run_missing(plan, root, console)
    nodes = EQUAL.judged(plan.settings.nodes)
    recordings = read_runs(plan, folder, EQUAL)
    summaries = summarize(plan.arms, recordings, nodes)
    results = {"settings": asdict(plan.settings), "arms": list(map(asdict, summaries))}
    folder.write_results(results, sapo_markdown(plan.settings, summaries))
    draw(summaries, recordings, nodes, folder.chart)
    return summaries


def extent(settings: Settings, node: str = "node") -> str:
    """Return ``8 nodes, 300 rounds``."""
    return f"{counted(settings.nodes, node)}, {counted(settings.rounds, 'round')}"


def sapo_markdown(settings: Settings, summaries: Sequence[Summary]) -> str:
    lines = markdown_rows(COLUMNS, list(map(_cells, summaries)))
    base = f"the model `{settings.model}`" if settings.model else "a base policy for each seed"
    if settings.bury:
        base += f" after {counted(settings.bury, 'step')} of noise fine-tuning"
    if settings.warm_start:
        base += f" after {counted(settings.warm_start, 'supervised step')}"
    return "\n".join(
        [
            "# Shared experience",
            "",
            f"{extent(settings)}, {base}, task set `{settings.task_set}`.",
            "",
            *lines,
            "",
            "Cumulative reward: mean reward of local rollouts, summed over rounds. Means "
            "over seeds ± standard error. Factors and gains compare with the reference of an arm "
            "(8/0 or 8/0 partial), seed by seed; * marks gains whose 95 % interval excludes 0. "
            "Equal tokens, equal CPU: ratio of mean rewards up to the cost of the cheaper run. On "
            "a GPU the time is wall-clock time.",
            "",
        ]
    )


def sapo_table(settings: Settings, summaries: Sequence[Summary]) -> Table:
    return table_of(extent(settings), COLUMNS, map(_cells, summaries), NARROW)


def table_of(
    title: str, header: Sequence[str], rows: Iterable[Sequence[str]], shown: Sequence[str]
) -> Table:
    """Return a table of the columns that are ``shown``: a text column and number columns."""
    out = Table(title=title)
    for name in shown:
        out.add_column(name, justify="left" if name == shown[0] else "right")
    places = [header.index(name) for name in shown]
    for row in rows:
        out.add_row(*(row[place] for place in places))
    return out


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table with a text column followed by number columns."""
    rule = ("---",) + ("---:",) * (len(header) - 1)
    return ["| " + " | ".join(row) + " |" for row in (header, rule, *rows)]


def _cells(summary: Summary) -> tuple[str, ...]:
    measured, compared = summary.measures, summary.comparison
    factors = ("", "", "", "")
    if compared:
        factors = (
            show(compared.factor, 2),
            _gain(compared.gain),
            show(compared.at_equal_tokens, 2),
            show(compared.at_equal_cpu, 2),
        )
    return (
        summary.arm,
        str(len(summary.seeds)),
        show(measured["cumulative"], 1),
        *factors,
        show(measured["heldout"], 3),
        show(measured["learned"], 3),
        show(measured["coverage"], 3) if "coverage" in measured else "",
        show(measured["informative"], 3),
        show(measured["filled"], 2),
        show(measured["entropy"], 2) if "entropy" in measured else "",
        show(measured["variance"], 3),
        show(measured["cpu"], 0),
    )


def show(estimate: ScoreEstimate, digits: int) -> str:
    error = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{error}"


def _gain(gain: ScoreEstimate) -> str:
    if gain.margin is None:
        return f"{gain.mean:+.1f}"
    low, high = gain.mean - gain.margin, gain.mean + gain.margin
    return f"{gain.mean:+.1f} ({low:+.1f} to {high:+.1f}){'*' if gain.beyond_noise else ''}"


# Cumulative rewards of arXiv 2509.08721, section 5.
PAPER = {"8/0": 561.79, "6/2": 854.43, "4/4": 1093.31, "2/6": 945.87}
SMOOTHED_OVER = 20  # number of smoothing windows per run
GRAY = "0.75"
PANELS = 4  # charts per row


def draw(
    summaries: Sequence[Summary], recordings: Recordings, nodes: Collection[int], path: Path
) -> None:
    """Draw rewards and cumulative rewards of these nodes as a PNG."""
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    _curves(left, summaries, recordings, nodes)
    left.set_title("reward of local rollouts, band: standard error over seeds")
    left.legend(frameon=False, fontsize="small")
    _bars(right, summaries)
    figure.savefig(path, dpi=130)


def draw_regimes(
    regimes: Sequence[RegimeSummary], recordings: Sequence[Recordings], path: Path
) -> None:
    """Draw one chart per regime as a PNG."""
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
    axes: Any, name: str, runs: Sequence[Recording], nodes: Collection[int], color: str
) -> None:
    rewards = np.array([run.rewards(nodes) for run in runs])
    window = max(1, rewards.shape[1] // SMOOTHED_OVER)
    smooth = np.array([np.convolve(row, np.ones(window) / window, "valid") for row in rewards])
    x = np.arange(smooth.shape[1]) + 1 + (window - 1) / 2
    mean = smooth.mean(0)
    axes.plot(x, mean, color=color, linewidth=1.8, label=name)
    if len(runs) > 1:
        error = smooth.std(0, ddof=1) / np.sqrt(len(runs))
        axes.fill_between(x, mean - error, mean + error, color=color, alpha=0.2, linewidth=0)


def _bars(axes: Any, summaries: Sequence[Summary]) -> None:
    for place, summary in enumerate(summaries):
        factor = summary.comparison.factor if summary.comparison else None
        height = factor.mean if factor else 1.0
        _bar(axes, place - 0.2, height, f"C{place}", factor.error if factor else None)
        if summary.arm in PAPER:
            _bar(axes, place + 0.2, PAPER[summary.arm] / PAPER["8/0"], GRAY, None)
    axes.bar(0, 0, color=GRAY, label="paper (Qwen2.5-0.5B, 2000 rounds)")
    axes.axhline(1.0, color="0.5", linewidth=0.8)
    names = [summary.arm.replace(" ", "\n") for summary in summaries]
    axes.set_xticks(range(len(names)), names, rotation=20, ha="right", fontsize="small")
    axes.set_title("cumulative reward, multiples of the reference's")
    axes.legend(frameon=False, fontsize="small")


def _bar(axes: Any, place: float, height: float, color: str, error: float | None) -> None:
    axes.bar(place, height, 0.4, color=color, yerr=error)
    axes.text(place, height, f"{height:.2f}", ha="center", va="bottom", fontsize="small")


HURTS = " !"


def run_regimes(plan: Plan, root: Path, console: Console) -> tuple[RegimeSummary, ...]:
    """Run what is missing in ``root``, then write results, tables and chart."""
    folder = run_missing(plan, root, console)
    recordings = [read_runs(plan, folder, regime) for regime in plan.regimes]
    summaries = tuple(
        summarize_regime(regime, plan.settings.nodes, plan.arms, runs)
        for regime, runs in zip(plan.regimes, recordings, strict=True)
    )
    results = {"settings": asdict(plan.settings), "regimes": list(map(asdict, summaries))}
    folder.write_results(results, regimes_markdown(plan, summaries))
    draw_regimes(summaries, recordings, folder.chart)
    return summaries


def regimes_markdown(plan: Plan, summaries: Sequence[RegimeSummary]) -> str:
    settings, names = plan.settings, [arm.name for arm in plan.arms]
    lines = [
        "# When sharing helps and when it hurts",
        "",
        f"{extent(settings)}, {counted(len(plan.seeds), 'seed')}, task set "
        f"`{settings.task_set}`. Means over seeds ± standard error. Factors compare cumulative "
        "reward with 8/0, seed by seed. The last column is the ratio of auto to the fixed mix with "
        f"the highest mean, including 8/0;{HURTS} marks a mean below {FLOOR}.",
        "",
        *markdown_rows(summary_header(names), [summary_row(s, names) for s in summaries]),
    ]
    for summary in summaries:
        lines += ["", f"## {summary.regime}", "", f"{summary.description.capitalize()}.", ""]
        lines += markdown_rows(_header(summary), list(_rows(summary)))
    return "\n".join([*lines, ""])


def regimes_table(plan: Plan, summaries: Sequence[RegimeSummary]) -> Table:
    names = [arm.name for arm in plan.arms]
    header, rows = summary_header(names), (summary_row(each, names) for each in summaries)
    return table_of(extent(plan.settings), header, rows, header)


def summary_header(arms: Sequence[str]) -> tuple[str, ...]:
    return ("regime", *arms, "auto / best fixed mix")


def summary_row(summary: RegimeSummary, arms: Sequence[str]) -> tuple[str, ...]:
    """Return the factors of a regime's arms, and the verdict."""
    by_name = {arm.arm: arm for arm in summary.arms}
    return (summary.regime, *(_factor(by_name[name]) for name in arms), _verdict(summary.verdict))


def _header(summary: RegimeSummary) -> tuple[str, ...]:
    parts = (f"factor of {base}" for base in summary.parts)
    return (
        *("arm", "seeds", "cumulative reward", "factor"),
        *parts,
        *("held-out", "peer groups", "auto / best fixed mix"),
    )


def _rows(summary: RegimeSummary) -> Iterator[tuple[str, ...]]:
    for place, arm in enumerate(summary.arms):
        measured = arm.measures
        yield (
            arm.arm,
            str(len(arm.seeds)),
            show(measured["cumulative"], 1),
            _factor(arm),
            *(_factor(part[place]) for part in summary.parts.values()),
            show(measured["heldout"], 3),
            show(measured["filled"], 2),
            _verdict(summary.verdict) if arm.arm == AUTO.name else "",
        )


def _factor(arm: Summary) -> str:
    if arm.comparison:
        return show(arm.comparison.factor, 2)
    return "1" if arm.arm == "8/0" else ""


def _verdict(verdict: RegimeVerdict | None) -> str:
    if verdict is None:
        return ""
    return f"{show(verdict.ratio, 2)} ({verdict.rival}){HURTS if verdict.hurts else ''}"
