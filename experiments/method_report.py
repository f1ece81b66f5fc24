"""``python -m experiments methods``: every method beside the default, and what comes out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from experiments import method_chart
from experiments.answers import Length
from experiments.arms import AUTO
from experiments.folder import ExperimentFolder
from experiments.measures import Comparison, Summary, summarise
from experiments.methods import METHODS, Method
from experiments.regimes import EQUAL
from experiments.run import Plan, check_engine, done, read
from experiments.settings import Settings
from experiments.tables import extent, markdown_rows, show
from node.errors import ConfigError
from node.evaluation.comparison import ScoreEstimate
from node.storage.atomic_files import write_atomic

FACTORS = ("equal rounds", "equal tokens", "equal CPU time")
"""What the two runs have alike where their own rewards are compared."""
DIFFERENCES = tuple(f"held-out, {alike}" for alike in FACTORS)
"""The same on held-out tasks, as differences: the base policies solve next to none."""

MOST_NAME = max(len(method.name) for method in METHODS)
"""Characters: no name of a method is broken in two."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What one method is worth with answers of one length.

    Attributes:
        seeds: that the method and the default have both done.
        factors: ratios of cumulative reward to the default's, by :data:`FACTORS`, paired by seed.
        differences: from the default's held-out rewards, by :data:`DIFFERENCES`.
    """

    seeds: int
    factors: Mapping[str, ScoreEstimate]
    differences: Mapping[str, ScoreEstimate]


Worths = Mapping[Length, Mapping[str, Worth]]
"""By length of answers and name of the method."""


def run_methods(
    settings: Mapping[Length, Settings],
    methods: Sequence[Method],
    seeds: Sequence[int],
    workers: int,
    root: Path,
    console: Console,
) -> Worths:
    """Do what is missing in ``root``, a folder for each length; write results, table and chart.

    See :func:`experiments.run.done`.
    """
    arms = (AUTO, *(method.arm for method in methods))
    worths: dict[Length, Mapping[str, Worth]] = {}
    for length, conditions in settings.items():
        plan = Plan(conditions, arms, tuple(seeds), workers)
        folder = done(plan, root / length, console)
        recordings = read(plan, folder, EQUAL)
        worths[length] = worths_of(summarise(arms, recordings, EQUAL.judged(conditions.nodes)))
    whole = ExperimentFolder(root)
    write_atomic(whole.results, results(settings, methods, worths).encode())
    write_atomic(whole.table, markdown(settings, methods, worths).encode())
    method_chart.draw([method.name for method in methods], worths, whole.chart)
    return worths


def possible(methods: Sequence[Method], console: Console) -> tuple[Method, ...]:
    """Those whose engine this machine has what it takes for; of the others the reason is told."""
    found = []
    for method in methods:
        try:
            check_engine(method.arm)
        except ConfigError as error:
            console.print(f"{method.name} is left out: {error}", markup=False)
        else:
            found.append(method)
    return tuple(found)


def worths_of(summaries: Sequence[Summary]) -> Mapping[str, Worth]:
    """Each method beside the default."""
    return {s.arm: _worth(len(s.seeds), s.comparison) for s in summaries if s.comparison}


def _worth(seeds: int, compared: Comparison) -> Worth:
    own = compared.factor, compared.at_equal_tokens, compared.at_equal_cpu
    held = compared.heldout, compared.heldout_at_equal_tokens, compared.heldout_at_equal_cpu
    return Worth(
        seeds,
        dict(zip(FACTORS, own, strict=True)),
        dict(zip(DIFFERENCES, held, strict=True)),
    )


def markdown(settings: Mapping[Length, Settings], methods: Sequence[Method], worths: Worths) -> str:
    """Conditions, a table for each length, and what the methods are."""
    lines = ["# What each method is worth", ""]
    for length, conditions in settings.items():
        header = ("method", "seeds", *FACTORS, *DIFFERENCES)
        rows = [_row(method.name, worths[length].get(method.name)) for method in methods]
        lines += [
            f"## {length.capitalize()} answers",
            "",
            f"{extent(conditions)}, tasks of the catalogue `{conditions.catalogue}`.",
            "",
            *markdown_rows(header, rows),
            "",
        ]
    lines += [
        "Ratios of mean rewards to the default's, paired by seed, mean ± standard error; marked * "
        "where the 95 % t interval leaves 1 out. Equal tokens, equal CPU time: up to what the "
        "cheaper of the two runs spent. Held-out: differences in mean reward along that way, "
        "marked where the interval leaves 0 out. They alone tell where a method chooses easier "
        "tasks to practise.",
        "",
        "## The methods",
        "",
        "| method | from | what is tried | keys |",
        "|---|---|---|---|",
    ]
    lines += [f"| {m.name} | {m.source} | {m.claim} | {_keys(m)} |" for m in methods]
    return "\n".join([*lines, ""])


def results(settings: Mapping[Length, Settings], methods: Sequence[Method], worths: Worths) -> str:
    """Everything, for other programs."""
    return json.dumps(
        {
            "settings": {length: asdict(conditions) for length, conditions in settings.items()},
            "methods": [
                {
                    **asdict(method),
                    **{
                        length: asdict(found[method.name])
                        for length, found in worths.items()
                        if method.name in found
                    },
                }
                for method in methods
            ],
        },
        indent=1,
    )


def table(settings: Mapping[Length, Settings], methods: Sequence[Method], worths: Worths) -> Table:
    """For the terminal: each method, then two lines for each length of answers."""
    title = "; ".join(f"{length}: {extent(s)}" for length, s in settings.items())
    out = Table(title=f"against the default; {title}", box=SIMPLE, padding=(0, 1, 0, 0))
    out.add_column("method", overflow="fold", min_width=MOST_NAME)
    for name in FACTORS:
        out.add_column(name, justify="right", no_wrap=True)
    for method in methods:
        out.add_row(method.name)
        for length in settings:
            _, _, *cells = _row(method.name, worths[length].get(method.name))
            out.add_row(f" {length}, own", *cells[: len(FACTORS)])
            out.add_row(f" {length}, held-out", *cells[len(FACTORS) :])
    return out


def _row(name: str, worth: Worth | None) -> tuple[str, ...]:
    if worth is None:
        return (name, "0", *("" for _ in (*FACTORS, *DIFFERENCES)))
    factors = (show(each, 2) + _mark(each, 1.0) for each in worth.factors.values())
    differences = (
        ("+" if each.mean >= 0 else "") + show(each, 3) + _mark(each, 0.0)
        for each in worth.differences.values()
    )
    return (name, str(worth.seeds), *factors, *differences)


def _mark(estimate: ScoreEstimate, nothing: float) -> str:
    margin = estimate.margin
    return " *" if margin is not None and abs(estimate.mean - nothing) > margin else ""


def _keys(method: Method) -> str:
    return ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in method.keys.items())
