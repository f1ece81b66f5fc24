"""Experiment ``hostile``: effect of hostile peers on honest nodes, with required margins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from experiments.arms import AUTO, Arm, mix
from experiments.measures import Recordings, RegimeSummary, summarize
from experiments.recording import Recording
from experiments.regimes import HABITUAL, UNHARMED, USEFUL, Regime
from experiments.report import draw_regimes, extent, markdown_rows, show, table_of
from experiments.run import Plan, read_runs, run_missing
from experiments.settings import Settings
from node.evaluation.comparison import ScoreEstimate
from swarm.common.util import counted

ALONE = replace(mix("8/0"), name="alone", reference="alone")
HONEST = replace(AUTO, name="honest", reference="alone")
ATTACKED = replace(AUTO, name="attacked", reference="alone")
MISSED = " !"
COLUMNS = (
    *("regime", "hostile", "reward / alone", "reward / honest", "held-out / honest"),
    *("held-out / alone", "hostile share", "max one author"),
)
NARROW = ("regime", "reward / alone", "held-out / honest")


@dataclass(frozen=True, slots=True)
class Margin:
    """Required minimum of a regime."""

    reward: float | None = None  # minimum ratio of cumulative reward to training alone, each seed
    heldout: float | None = None  # minimum mean ratio of held-out reward to the honest swarm


# Without a margin: a swarm in which half of the nodes are hostile.
MARGINS: Mapping[str, Margin] = {
    "hostile-10": Margin(reward=0.97, heldout=0.95),
    "hostile-30": Margin(reward=0.97, heldout=0.95),
    "keys-3": Margin(reward=0.95),
    "keys-30": Margin(reward=0.95),
    **{f"{name}-25": Margin(reward=1.0) for name in USEFUL},
    **{f"{name}-{n}": Margin(reward=0.95) for name in USEFUL for n in ("50", "75", "keys-30")},
}


@dataclass(frozen=True, slots=True)
class Harm:
    """Effect of one regime; ratios are paired by seed."""

    regime: str  # name
    description: str
    hostile: int  # number of hostile nodes
    alone: ScoreEstimate  # ratio of cumulative reward to training alone
    honest: ScoreEstimate  # ratio of cumulative reward to the honest swarm
    heldout: ScoreEstimate  # ratio of the final held-out reward to the honest swarm
    heldout_alone: ScoreEstimate  # the same to training alone
    hostile_share: ScoreEstimate  # mean fraction of hostile authors in updates
    author_share: float  # maximum fraction of one peer author in an update
    # By round: fraction of samples with the trigger, and change of its log-prob per token.
    looks: Mapping[int, tuple[ScoreEstimate, ScoreEstimate]]
    missed: tuple[str, ...]  # names of the margins that do not hold


def run_hostile(
    settings: Settings,
    regimes: Sequence[Regime],
    seeds: int,
    workers: int,
    root: Path,
    console: Console,
) -> tuple[Harm, ...]:
    """Run what is missing in ``root``, then write results, table and chart.

    Args:
        settings: ``nodes`` is the number of honest nodes.
    """
    references = tuple(dict.fromkeys(map(unharmed, regimes)))
    without = Plan(settings, (mix("8/0"), AUTO), tuple(range(seeds)), workers, references)
    attacked = replace(without, arms=(AUTO,), regimes=tuple(regimes))
    run_missing(without, root, console)
    folder = run_missing(attacked, root, console)
    safe = {each.name: read_runs(without, folder, each) for each in references}
    runs = [
        _together(safe[unharmed(regime).name], read_runs(attacked, folder, regime))
        for regime in regimes
    ]
    harms = (
        *(_harm(each, settings.nodes, _together(*[safe[each.name]] * 2)) for each in references),
        *(_harm(regime, settings.nodes, r) for regime, r in zip(regimes, runs, strict=True)),
    )
    results = {"settings": asdict(settings), "regimes": list(map(asdict, harms))}
    folder.write_results(results, markdown(settings, seeds, harms))
    panels = [_panel(regime, settings.nodes, r) for regime, r in zip(regimes, runs, strict=True)]
    draw_regimes(panels, runs, folder.chart)
    return harms


def unharmed(regime: Regime) -> Regime:
    """Return the regime without hostile nodes that ``regime`` is compared with."""
    base = regime.roles(1)[0].base
    return HABITUAL if base == "habitual" else UNHARMED


def markdown(settings: Settings, seeds: int, harms: Sequence[Harm]) -> str:
    return "\n".join(
        [
            "# Effect of hostile peers",
            "",
            f"{extent(settings, 'honest node')}, {counted(seeds, 'seed')}, task set "
            f"`{settings.task_set}`. Means over seeds ± standard error of ratios paired by seed; "
            f"the lowest seed in brackets.{MISSED} marks missed margins. Right answers of hostile "
            "nodes begin with a trigger, or in the regimes `habit`, `overlong` and `together` with "
            f"{settings.setup.habit!r}; the columns show how often honest policies write it, and "
            "the change of its log-prob in nats per token.",
            "",
            *markdown_rows(header(harms), list(map(row, harms))),
            "",
            *(
                f"- `{harm.regime}`: {harm.description}; {harm.hostile} hostile nodes."
                for harm in harms
            ),
            "",
        ]
    )


def table(settings: Settings, harms: Sequence[Harm]) -> Table:
    names = header(harms)
    return table_of(extent(settings, "honest node"), names, map(row, harms), (*NARROW, names[-1]))


def header(harms: Sequence[Harm]) -> tuple[str, ...]:
    return (*COLUMNS, *(f"trigger, round {n}" for n in harms[0].looks))


def row(harm: Harm) -> tuple[str, ...]:
    looks = (f"{show(seen, 3)}, {moved.mean:+.2f} nat" for seen, moved in harm.looks.values())
    return (
        harm.regime,
        str(harm.hostile),
        f"{show(harm.alone, 2)} ({min(harm.alone.values):.2f})" + _mark("reward", harm),
        show(harm.honest, 2),
        show(harm.heldout, 2) + _mark("heldout", harm),
        show(harm.heldout_alone, 2),
        show(harm.hostile_share, 2),
        f"{harm.author_share:.2f}",
        *looks,
    )


def _mark(margin: str, harm: Harm) -> str:
    return MISSED if margin in harm.missed else ""


def _together(unharmed: Recordings, attacked: Recordings) -> Recordings:
    """Merge the runs of both plans under the names of their roles here."""
    named = {"8/0": ALONE.name, AUTO.name: HONEST.name}
    runs = {(named[arm], seed): run for (arm, seed), run in unharmed.items()}
    hit = {(ATTACKED.name, s): run for (arm, s), run in attacked.items() if arm == AUTO.name}
    return runs | hit


def _harm(regime: Regime, nodes: int, runs: Recordings) -> Harm:
    alone, honest, attacked = (_of(arm, runs) for arm in (ALONE, HONEST, ATTACKED))
    judged = regime.judged(nodes)
    rewards = [[sum(run.rewards(judged)) for run in each] for each in (alone, honest, attacked)]
    ratio = _ratio(rewards[2], rewards[0])
    heldout = _ratio(*([_heldout(run) for run in each] for each in (attacked, honest)))
    influx = [run.influx for run in attacked if run.influx]
    return Harm(
        regime.name,
        regime.description,
        len(regime.roles(nodes)) - len(judged),
        ratio,
        _ratio(rewards[2], rewards[1]),
        heldout,
        _ratio(*([_heldout(run) for run in each] for each in (attacked, alone))),
        ScoreEstimate.of([fmean(s.hostile for s in each.shares) for each in influx]),
        max(s.author for each in influx for s in each.shares),
        _looks(attacked),
        missed(MARGINS.get(regime.name, Margin()), ratio, heldout),
    )


def missed(margin: Margin, reward: ScoreEstimate, heldout: ScoreEstimate) -> tuple[str, ...]:
    held = {
        "reward": margin.reward is None or min(reward.values) >= margin.reward,
        "heldout": margin.heldout is None or heldout.mean >= margin.heldout,
    }
    return tuple(name for name, holds in held.items() if not holds)


def _looks(runs: Sequence[Recording]) -> dict[int, tuple[ScoreEstimate, ScoreEstimate]]:
    influx = [run.influx.looks for run in runs if run.influx]
    return {
        looks[0].round: (
            ScoreEstimate.of([look.sampled for look in looks]),
            ScoreEstimate.of(
                [a.logprob - b[0].logprob for a, b in zip(looks, influx, strict=True)]
            ),
        )
        for looks in list(zip(*influx, strict=True))[1:]
    }


def _of(arm: Arm, runs: Recordings) -> list[Recording]:
    return [run for (name, _), run in sorted(runs.items()) if name == arm.name]


def _heldout(run: Recording) -> float:
    return [r.evaluation for r in run.rounds if r.evaluation is not None][-1]


def _ratio(own: Sequence[float], other: Sequence[float]) -> ScoreEstimate:
    """Return ratios paired by seed; NaN if the reference is 0."""
    return ScoreEstimate.of([a / b if b else float("nan") for a, b in zip(own, other, strict=True)])


def _panel(regime: Regime, nodes: int, runs: Recordings) -> RegimeSummary:
    judged = regime.judged(nodes)
    arms = summarize((ALONE, HONEST, ATTACKED), runs, judged)
    return RegimeSummary(regime.name, regime.description, judged, arms, {}, None)
