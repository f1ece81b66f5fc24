"""Experiment ``methods``: published methods compared with the default configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from experiments.arms import AUTO, Arm, varied_keys
from experiments.folder import ExperimentFolder
from experiments.measures import Comparison, Summary, summarize
from experiments.regimes import EQUAL
from experiments.report import extent, markdown_rows, show
from experiments.run import Plan, check_engine, read_runs, run_missing
from experiments.settings import Settings
from experiments.setups import Length
from node.errors import ConfigError, UsageError
from node.evaluation.comparison import ScoreEstimate
from node.monitor.history import new_figure

ROUNDS: Mapping[Length, int] = {"short": 150, "long": 80}
"""Default rounds by length of answers: all methods take an afternoon on two cores."""


@dataclass(frozen=True, slots=True)
class Method:
    """One change to the default configuration."""

    name: str  # unique; shown in tables and used by ``--method``
    source: str
    claim: str  # what is tried
    keys: Mapping[str, Any]  # config keys of every node that differ from the default

    @property
    def arm(self) -> Arm:
        """Return the default arm with this method, with the default as its reference."""
        return replace(
            AUTO, name=self.name, reference=AUTO.name, overrides={**AUTO.overrides, **self.keys}
        )


_CISPO = "MiniMax, arXiv 2506.13585"
_BRORL = "BroRL, arXiv 2510.01180"
_GSPO = "Qwen, arXiv 2507.18071"
_GSPO_CLIP = {"learner.clip_low": 3e-4, "learner.clip_high": 4e-4}

METHODS = (
    Method("3-epochs", "PPO, arXiv 1707.06347", "three epochs per update", {"learner.epochs": 3}),
    Method(
        "cispo", _CISPO, "clipped ratio; every token keeps its gradient", {"learner.loss": "cispo"}
    ),
    Method(
        "cispo-3-epochs",
        _CISPO,
        "the same with three epochs per update",
        {"learner.loss": "cispo", "learner.epochs": 3},
    ),
    Method(
        "gspo",
        _GSPO,
        "one ratio per sequence, with the paper's clip range",
        {"learner.loss": "gspo", **_GSPO_CLIP},
    ),
    Method(
        "gspo-3-epochs",
        _GSPO,
        "the same with three epochs per update",
        {"learner.loss": "gspo", **_GSPO_CLIP, "learner.epochs": 3},
    ),
    Method(
        "thompson",
        "VADE, arXiv 2511.18902",
        "more tasks of levels that are solved sometimes",
        {"tasks.curriculum": "thompson"},
    ),
    Method(
        "3-uses", "experience replay", "use peer groups in three updates", {"mixture.max_uses": 3}
    ),
    Method(
        "int8-rollouts",
        "QeRL, arXiv 2510.11696, without its noise",
        "generate with 8-bit weights",
        {"engine.backend_options": {"int8": True}},
    ),
    Method(
        "thompson-3-uses",
        "VADE, arXiv 2511.18902; experience replay",
        "both changes",
        {"tasks.curriculum": "thompson", "mixture.max_uses": 3},
    ),
    Method(
        "brorl-16",
        _BRORL,
        "half as many tasks with twice the completions each",
        {
            "engine.group_size": 16,
            "mixture.local": 1,
            "mixture.external": 3,
            "learner.groups_per_step": 2,
        },
    ),
    Method(
        "narrow-4",
        _BRORL,
        "twice as many tasks with half the completions each",
        {
            "engine.group_size": 4,
            "mixture.local": 4,
            "mixture.external": 12,
            "mixture.target_groups": 24,
            "learner.groups_per_step": 6,
        },
    ),
)


def find_methods(
    names: list[str] | None, variations: list[str] | None = None
) -> tuple[Method, ...]:
    """Return the requested methods in the order of the table, then the variations, each once.

    Args:
        names: names of methods; without names and variations, all methods are returned.
        variations: texts of ``--vary``; each is named by its keys.

    Raises:
        UsageError: unknown method, or a variation without a key.
        ConfigError: a variation sets a wrong key, see :func:`varied_keys`.
    """
    known = {method.name: method for method in METHODS}
    for name in names or ():
        if name not in known:
            raise UsageError("--method", name, f"Use {', '.join(known)}.")
    if not names and not variations:
        return METHODS
    own = {" ".join(text.split()): varied_keys(text) for text in variations or ()}
    return (
        *(method for method in METHODS if method.name in (names or ())),
        *(Method(name, "–", "own variation", keys) for name, keys in own.items()),
    )


# Rewards are compared as ratios, and held-out rewards as differences, because the base policies
# solve almost none of the held-out tasks.
FACTORS = ("equal rounds", "equal tokens", "equal CPU time")
DIFFERENCES = tuple(f"held-out, {cost}" for cost in FACTORS)
MAX_NAME_WIDTH = max(len(method.name) for method in METHODS)  # so that no name is broken


@dataclass(frozen=True, slots=True)
class Effect:
    """Effect of one method with answers of one length."""

    seeds: int  # seeds that the method and the default have completed
    factors: Mapping[str, ScoreEstimate]  # ratios of cumulative reward, by :data:`FACTORS`
    differences: Mapping[str, ScoreEstimate]  # of held-out reward, by :data:`DIFFERENCES`


Effects = Mapping[Length, Mapping[str, Effect]]  # by length of answers and name of the method


def run_methods(
    settings: Mapping[Length, Settings],
    methods: Sequence[Method],
    seeds: Sequence[int],
    workers: int,
    root: Path,
    console: Console,
) -> Effects:
    """Run what is missing in ``root``, a folder per length; write results, table and chart."""
    arms = (AUTO, *(method.arm for method in methods))
    effects: dict[Length, Mapping[str, Effect]] = {}
    for length, conditions in settings.items():
        plan = Plan(conditions, arms, tuple(seeds), workers)
        folder = run_missing(plan, root / length, console)
        recordings = read_runs(plan, folder, EQUAL)
        effects[length] = effects_of(summarize(arms, recordings, EQUAL.judged(conditions.nodes)))
    whole = ExperimentFolder(root)
    whole.write_results(results(settings, methods, effects), markdown(settings, methods, effects))
    draw([method.name for method in methods], effects, whole.chart)
    return effects


def supported(methods: Sequence[Method], console: Console) -> tuple[Method, ...]:
    """Return the methods whose engine can run here; print the reason for each of the others."""
    found = []
    for method in methods:
        try:
            check_engine(method.arm)
        except ConfigError as error:
            console.print(f"{method.name} cannot run here: {error}", markup=False)
        else:
            found.append(method)
    return tuple(found)


def effects_of(summaries: Sequence[Summary]) -> Mapping[str, Effect]:
    """Return the effect of each compared arm, by name."""
    return {s.arm: _effect(len(s.seeds), s.comparison) for s in summaries if s.comparison}


def _effect(seeds: int, compared: Comparison) -> Effect:
    own = compared.factor, compared.at_equal_tokens, compared.at_equal_cpu
    held = compared.heldout, compared.heldout_at_equal_tokens, compared.heldout_at_equal_cpu
    return Effect(
        seeds, dict(zip(FACTORS, own, strict=True)), dict(zip(DIFFERENCES, held, strict=True))
    )


def markdown(
    settings: Mapping[Length, Settings], methods: Sequence[Method], effects: Effects
) -> str:
    lines = ["# Effect of each method", ""]
    for length, conditions in settings.items():
        header = ("method", "seeds", *FACTORS, *DIFFERENCES)
        rows = [_row(method.name, effects[length].get(method.name)) for method in methods]
        lines += [
            f"## {length.capitalize()} answers",
            "",
            f"{extent(conditions)}, task set `{conditions.task_set}`.",
            "",
            *markdown_rows(header, rows),
            "",
        ]
    lines += [
        "Ratios of mean rewards to the default's, paired by seed, mean ± standard error; * marks "
        "a 95 % t interval that excludes 1. Equal tokens, equal CPU time: up to the cost of the "
        "cheaper run. Held-out: differences in mean reward up to that cost, with * if the interval "
        "excludes 0. Only these show whether a method selects easier tasks.",
        "",
        "## The methods",
        "",
        "| method | source | change | keys |",
        "|---|---|---|---|",
    ]
    lines += [f"| {m.name} | {m.source} | {m.claim} | {_keys(m)} |" for m in methods]
    return "\n".join([*lines, ""])


def results(
    settings: Mapping[Length, Settings], methods: Sequence[Method], effects: Effects
) -> dict[str, Any]:
    rows = [asdict(method) for method in methods]
    for row in rows:
        row |= {
            length: asdict(found[row["name"]])
            for length, found in effects.items()
            if row["name"] in found
        }
    conditions = {length: asdict(each) for length, each in settings.items()}
    return {"settings": conditions, "methods": rows}


def table(
    settings: Mapping[Length, Settings], methods: Sequence[Method], effects: Effects
) -> Table:
    title = "; ".join(f"{length}: {extent(s)}" for length, s in settings.items())
    out = Table(title=f"relative to the default; {title}", box=SIMPLE, padding=(0, 1, 0, 0))
    out.add_column("method", overflow="fold", min_width=MAX_NAME_WIDTH)
    for name in FACTORS:
        out.add_column(name, justify="right", no_wrap=True)
    for method in methods:
        out.add_row(method.name)
        for length in settings:
            _, _, *cells = _row(method.name, effects[length].get(method.name))
            out.add_row(f" {length}, local", *cells[: len(FACTORS)])
            out.add_row(f" {length}, held-out", *cells[len(FACTORS) :])
    return out


def _row(name: str, effect: Effect | None) -> tuple[str, ...]:
    if effect is None:
        return (name, "0", *("" for _ in (*FACTORS, *DIFFERENCES)))
    factors = (show(each, 2) + _mark(each, 1.0) for each in effect.factors.values())
    differences = (
        ("+" if each.mean >= 0 else "") + show(each, 3) + _mark(each, 0.0)
        for each in effect.differences.values()
    )
    return (name, str(effect.seeds), *factors, *differences)


def _mark(estimate: ScoreEstimate, neutral: float) -> str:
    margin = estimate.margin
    return " *" if margin is not None and abs(estimate.mean - neutral) > margin else ""


def _keys(method: Method) -> str:
    return ", ".join(f"`{key} = {json.dumps(value)}`" for key, value in method.keys.items())


APART = 0.22  # distance between the marks of one method, in rows


def draw(names: Sequence[str], effects: Effects, path: Path) -> None:
    """Draw a PNG with a row per method, and per length ratios and held-out differences."""
    figure = new_figure(7.6 * len(effects), 1.8 + 0.42 * len(names))
    panels = figure.subplots(1, 2 * len(effects), sharey=True, squeeze=False)[0]
    for place, (length, found) in enumerate(effects.items()):
        done = {row: found[name] for row, name in enumerate(names) if name in found}
        ratios, held = panels[2 * place], panels[2 * place + 1]
        _panel(ratios, {row: effect.factors for row, effect in done.items()}, 1.0)
        _panel(held, {row: effect.differences for row, effect in done.items()}, 0.0)
        ratios.set_title(f"{length}: reward / the default's")
        held.set_title(f"{length}: reward - the default's")
    panels[0].set_yticks(range(len(names)), names)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=130)


def _panel(axes: Any, rows: Mapping[int, Mapping[str, ScoreEstimate]], neutral: float) -> None:
    """Draw means with their 95 % intervals, those of one row below one another."""
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
    axes.axvline(neutral, color="0.5", linewidth=0.8)
    axes.grid(alpha=0.25, axis="x")
    if kinds:
        axes.legend(frameon=False, fontsize="small")
