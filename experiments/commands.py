"""``python -m experiments``: what sharing experience is worth, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from experiments.make_models import make_models
from experiments.methods_command import methods
from experiments.options import Folder, Long, Rounds, Seeds, Vary, What, Workers
from experiments.outcome import tell
from experiments.scale.command import command as scale
from node.cli import program
from node.cli.options import DebugOption, JsonOption

PROGRAM = "python -m experiments"
app = typer.Typer(
    name=PROGRAM,
    help="Measure what sharing experience is worth, on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

QUICK = ("8/0", "4/4", "auto")
QUICK_REGIMES = ("strong", "weak")


@app.command(
    "sapo",
    epilog="Example: python -m experiments sapo --mix 8/0 --mix 4/4 --seeds 3 --run-dir my-table",
)
def sapo(
    mixes: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="OWN/EXTERNAL",
            help="A mix to run, or auto, which is how join trains by default; may be repeated. "
            "Left out: 8/0, 6/2, 4/4, 2/6 and auto.",
            show_default=False,
        ),
    ] = None,
    vary: Vary = None,
    controls: Annotated[
        bool, typer.Option("--controls", help="Run the controls beside the mixes.")
    ] = False,
    seeds: Seeds = 5,
    answers: What = "short",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=1,
            help="Rounds of each node. Left out: 300, 120 with long answers, 100 with games.",
            show_default=False,
        ),
    ] = None,
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="Nodes of a swarm.")] = 8,
    bury: Annotated[
        int | None,
        typer.Option(
            "--bury",
            min=0,
            help="Steps of noise over each seed's base policy: the more, the rarer its right "
            "answers at the start. Left out: 100, or none with games, whose base is the shipped "
            "model.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = 0,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Folder of the experiment; one that was broken off goes on. "
            "Left out: ./experiment-run/sapo (quick, -long).",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed, fewer rounds, 8/0, 4/4 and auto, the shipped model.",
        ),
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Rerun the table of the SAPO paper (arXiv 2509.08721) with tiny models.

    Whole swarms are simulated, one a process, by the parts that join runs; only wires and clock
    are the simulation's.
    """
    from experiments.answers import ANSWERS, answers_of
    from experiments.arms import AUTO, CONTROLS, MIXES, mix, varied
    from experiments.run import Plan, run
    from experiments.settings import Settings
    from experiments.tables import table
    from node.monitor.record import Terminal

    length = answers_of(answers)
    set_up = ANSWERS[length]
    buried = set_up.buried if bury is None else bury
    settings = Settings(nodes, rounds or set_up.rounds, set_up.model, buried, length)
    if quick:
        mixes, seeds = mixes or list(QUICK), 1
        settings = replace(settings, rounds=rounds or set_up.quick_rounds, model=set_up.recipe)
    arms = tuple(map(mix, mixes)) if mixes else (*MIXES, AUTO)
    arms += tuple(map(varied, vary or ()))
    if controls:
        arms += tuple(arm for arm in CONTROLS if arm.name not in {a.name for a in arms})
    root = run_dir or _folder("quick" if quick else "sapo", answers)
    plan = Plan(settings, arms, tuple(range(seeds)), workers)
    summaries = run(plan, root, Terminal(stderr=True))
    tell(root, table(settings, summaries), json)


@app.command(
    "regimes",
    epilog="Example: python -m experiments regimes --regime churn --regime mixed --seeds 3",
)
def regimes(
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--regime",
            metavar="NAME",
            help="A regime to run: equal, divided, strong, weak, dense, mixed, churn, useless, or "
            "imagined-0, -10, -25, -50; may be repeated. Left out: all but the imagined ones.",
            show_default=False,
        ),
    ] = None,
    mixes: Annotated[
        list[str] | None,
        typer.Option(
            "--mix",
            metavar="OWN/EXTERNAL",
            help="A mix to run, or auto; may be repeated. Left out: 8/0, 6/2, 4/4, 2/6 and auto.",
            show_default=False,
        ),
    ] = None,
    vary: Vary = None,
    seeds: Seeds = 5,
    answers: Long = "short",
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds",
            min=2,
            help="Rounds of each node. Left out: 150, or 90 with long answers.",
            show_default=False,
        ),
    ] = None,
    workers: Workers = 0,
    run_dir: Annotated[
        Path | None,
        typer.Option(
            "--run-dir",
            help="Folder of the experiment; one that was broken off goes on. "
            "Left out: ./experiment-run/regimes (-quick, -long).",
            show_default=False,
        ),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="One seed, fewer rounds, strong and weak, 8/0 and auto, the shipped model.",
        ),
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare mixes in situations in which sharing may hurt.

    Unequal, divided or different nodes, dense rewards, churn, useless peers and imagined
    experience, eight nodes each.
    """
    from experiments.answers import ANSWERS, answers_of
    from experiments.arms import AUTO, MIXES, mix, varied
    from experiments.regime_report import run_regimes, table
    from experiments.regimes import IMAGINED, REGIMES, find
    from experiments.run import Plan
    from experiments.settings import Settings
    from node.monitor.record import Terminal

    length = answers_of(answers)
    set_up = ANSWERS[length]
    settings = Settings(rounds=rounds or set_up.differing.rounds, answers=length)
    if quick:
        names, mixes, seeds = names or list(QUICK_REGIMES), mixes or ["8/0", "auto"], 1
        settings = replace(settings, rounds=rounds or set_up.quick_rounds, model=set_up.recipe)
    arms = tuple(map(mix, mixes)) if mixes else (*MIXES, AUTO)
    plan = Plan(
        settings,
        (*arms, *map(varied, vary or ())),
        tuple(range(seeds)),
        workers,
        tuple(find(name, REGIMES | IMAGINED) for name in dict.fromkeys(names or REGIMES)),
    )
    root = run_dir or _folder("regimes-quick" if quick else "regimes", answers)
    summaries = run_regimes(plan, root, Terminal(stderr=True))
    tell(root, table(plan, summaries), json)


@app.command(
    "hostile",
    epilog="Example: python -m experiments hostile --regime hostile-30 --regime keys-30 --seeds 2",
)
def hostile(
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--regime",
            metavar="NAME",
            help="hostile-10, hostile-30, hostile-50, keys-3 or keys-30; may be repeated. "
            "Left out: all.",
            show_default=False,
        ),
    ] = None,
    seeds: Seeds = 5,
    rounds: Rounds = 150,
    workers: Workers = 0,
    run_dir: Folder = Path("experiment-run/hostile"),
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure what hostile peers do to seven honest nodes that train by default.

    They share poisoned groups that no judge has anything against, as a part of all nodes or under
    many keys. Honest nodes are held against the same nodes alone and among themselves.
    """
    from experiments.hostile_report import run_hostile, table
    from experiments.regimes import HONEST, HOSTILE, find
    from experiments.settings import Settings
    from node.monitor.record import Terminal

    settings = Settings(nodes=HONEST, rounds=rounds, eval_every=50, eval_tasks=256)
    chosen = [find(name, HOSTILE) for name in dict.fromkeys(names or HOSTILE)]
    harms = run_hostile(settings, chosen, seeds, workers, run_dir, Terminal(stderr=True))
    tell(run_dir, table(settings, harms), json)


app.command(
    "methods",
    epilog="Example: python -m experiments methods --method cispo --answers short --seeds 3",
)(methods)
app.command("scale", epilog="Example: python -m experiments scale --nodes 100 --scenario growth")(
    scale
)
app.command("make-models", epilog="Example: python -m experiments make-models --only tiny")(
    make_models
)


def main(interrupted: Callable[[], bool]) -> int:
    """Run one command; see :func:`node.cli.program.main`."""
    return program.main(interrupted, app, PROGRAM)


def _folder(name: str, answers: str) -> Path:
    """Of an experiment for which nobody named one."""
    return Path("experiment-run") / (name if answers == "short" else f"{name}-{answers}")
