"""The outcome as Markdown, as a table for the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from experiments.measures import Summary
from experiments.settings import Settings
from node.evaluation.comparison import ScoreEstimate
from swarm.common.util import counted

COLUMNS = (
    "arm",
    "seeds",
    "cumulative reward",
    "factor",
    "gain (95 %)",
    "factor at equal tokens",
    "factor at equal CPU",
    "held-out",
    "informative",
    "external groups",
    "entropy",
    "variance",
    "CPU s",
)
NARROW = ("arm", "cumulative reward", "factor", "gain (95 %)", "factor at equal tokens", "held-out")
"""What fits into a terminal."""


def extent(settings: Settings, node: str = "node") -> str:
    """``8 nodes, 300 rounds``."""
    return f"{counted(settings.nodes, node)}, {counted(settings.rounds, 'round')}"


def markdown(settings: Settings, summaries: Sequence[Summary]) -> str:
    """Conditions, table and how to read it."""
    lines = markdown_rows(COLUMNS, list(map(_cells, summaries)))
    base = f"the model `{settings.model}`" if settings.model else "a base policy for each seed"
    if settings.bury:
        base += f", buried under {counted(settings.bury, 'step')} of noise"
    return "\n".join(
        [
            "# Sharing experience",
            "",
            f"{extent(settings)}, {base}, tasks of the catalogue `{settings.catalogue}`.",
            "",
            *lines,
            "",
            "Cumulative reward: mean reward of the nodes' own rollouts, summed over rounds. Means "
            "over seeds ± standard error. Factors and gains are against the reference of the arm "
            "(8/0, or 8/0 partial), seed by seed; a gain is marked * where its 95 % t interval "
            "leaves 0 out. Equal tokens, equal CPU: ratio of mean rewards up to what the cheaper "
            "of the two runs spent.",
            "",
        ]
    )


def results(settings: Settings, summaries: Sequence[Summary]) -> str:
    """Everything, for other programs."""
    return json.dumps(
        {"settings": asdict(settings), "arms": [asdict(summary) for summary in summaries]},
        indent=1,
    )


def table(settings: Settings, summaries: Sequence[Summary]) -> Table:
    """The columns that matter most."""
    out = Table(title=extent(settings))
    for name in NARROW:
        out.add_column(name, justify="left" if name == "arm" else "right")
    places = [COLUMNS.index(name) for name in NARROW]
    for summary in summaries:
        cells = _cells(summary)
        out.add_row(*(cells[place] for place in places))
    return out


def markdown_rows(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is text and whose others are figures."""
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
        show(measured["informative"], 3),
        show(measured["filled"], 2),
        show(measured["entropy"], 2) if "entropy" in measured else "",
        show(measured["variance"], 3),
        show(measured["cpu"], 0),
    )


def show(estimate: ScoreEstimate, digits: int) -> str:
    """Mean ± standard error."""
    error = "" if estimate.error is None else f" ± {estimate.error:.{digits}f}"
    return f"{estimate.mean:.{digits}f}{error}"


def _gain(gain: ScoreEstimate) -> str:
    if gain.margin is None:
        return f"{gain.mean:+.1f}"
    low, high = gain.mean - gain.margin, gain.mean + gain.margin
    return f"{gain.mean:+.1f} ({low:+.1f} to {high:+.1f}){'*' if gain.beyond_noise else ''}"
