"""``python -m experiments regimes``: every arm in every regime, and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments import chart
from experiments.arms import AUTO
from experiments.measures import Summary
from experiments.regime_summary import FLOOR, RegimeSummary, RegimeVerdict, summarise_regime
from experiments.run import Plan, done, read
from experiments.tables import extent, markdown_rows, show
from node.storage.atomic_files import write_atomic
from swarm.common.util import counted

HURTS = " !"


def run_regimes(plan: Plan, root: Path, console: Console) -> tuple[RegimeSummary, ...]:
    """Do what is missing in ``root``, then write results, tables and chart there.

    See :func:`experiments.run.done`.
    """
    folder = done(plan, root, console)
    recordings = [read(plan, folder, regime) for regime in plan.regimes]
    summaries = tuple(
        summarise_regime(regime, plan.settings.nodes, plan.arms, runs)
        for regime, runs in zip(plan.regimes, recordings, strict=True)
    )
    results = {"settings": asdict(plan.settings), "regimes": list(map(asdict, summaries))}
    write_atomic(folder.results, json.dumps(results, indent=1).encode())
    write_atomic(folder.table, markdown(plan, summaries).encode())
    chart.draw_regimes(summaries, recordings, folder.chart)
    return summaries


def markdown(plan: Plan, summaries: Sequence[RegimeSummary]) -> str:
    """The summary, then a table for each regime."""
    settings, names = plan.settings, [arm.name for arm in plan.arms]
    lines = [
        "# Where sharing helps and where it hurts",
        "",
        f"{extent(settings)}, {counted(len(plan.seeds), 'seed')}, tasks of the catalogue "
        f"`{settings.catalogue}`. Means over seeds ± standard error. Factors of "
        "cumulative reward are against 8/0, seed by seed. The last column is the ratio of auto to "
        "the fixed mix, 8/0 among them, with the highest mean, seed by seed; a mean below "
        f"{FLOOR} is marked{HURTS}.",
        "",
        *markdown_rows(summary_header(names), [summary_row(s, names) for s in summaries]),
    ]
    for summary in summaries:
        lines += ["", f"## {summary.regime}", "", f"{summary.description.capitalize()}.", ""]
        lines += markdown_rows(_header(summary), list(_rows(summary)))
    return "\n".join([*lines, ""])


def table(plan: Plan, summaries: Sequence[RegimeSummary]) -> Table:
    """The summary for the terminal."""
    names = [arm.name for arm in plan.arms]
    out = Table(title=extent(plan.settings))
    for name in summary_header(names):
        out.add_column(name, justify="left" if name == "regime" else "right")
    for summary in summaries:
        out.add_row(*summary_row(summary, names))
    return out


def summary_header(arms: Sequence[str]) -> tuple[str, ...]:
    """Columns of the summary."""
    return ("regime", *arms, "auto against the best fixed")


def summary_row(summary: RegimeSummary, arms: Sequence[str]) -> tuple[str, ...]:
    """Factors of a regime's arms, and the verdict."""
    by_name = {arm.arm: arm for arm in summary.arms}
    return (summary.regime, *(_factor(by_name[name]) for name in arms), _verdict(summary.verdict))


PLANTED = {"planted": "imagined", "use": "use of imagined", "use of others": "use of others"}
"""Columns of a regime with imagined groups, by measure."""


def _header(summary: RegimeSummary) -> tuple[str, ...]:
    parts = (f"factor of {base}" for base in summary.parts)
    planted = PLANTED.values() if _watched(summary) else ()
    return (
        *("arm", "seeds", "cumulative reward", "factor"),
        *parts,
        *("held-out", "external groups", *planted, "auto against the best fixed"),
    )


def _watched(summary: RegimeSummary) -> bool:
    return any("planted" in arm.measures for arm in summary.arms)


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
            *(show(measured[n], 2) if n in measured else "" for n in PLANTED if _watched(summary)),
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
