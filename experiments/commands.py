"""``python -m experiments``: measure the benefit of shared experience on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.scale.command import command as scale
from node.cli import program
from node.cli.options import Command, JsonOption, print_json
from node.errors import UsageError
from node.monitor.output import say

if TYPE_CHECKING:
    from rich.table import Table

    from experiments.arms import Arm
    from experiments.settings import Settings
    from experiments.setups import Length

PROGRAM = "python -m experiments"
QUICK = ("8/0", "4/4", "auto")
QUICK_REGIMES = ("strong", "weak")
MAX_SEED = 1_000_000_000  # the random generators take seeds of 32 bits
MODELS = Path(__file__).resolve().parents[1] / "node" / "models"
MODEL_SEED = 2
MEASURED_TASKS = 64

app = typer.Typer(
    name=PROGRAM,
    help="Measure the benefit of shared experience on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
command = partial(app.command, cls=Command)


def _option(flag: str, text: str, **settings: Any) -> Any:
    return typer.Option(flag, help=text, show_default=False, **settings)


def _rounds(default: str, least: int = 1) -> Any:
    return _option("--rounds", f"Rounds of each node. Default: {default}.", min=least)


FOLDER = "Folder of the experiment; an existing one is resumed."
LENGTHS = "Tasks with answers of a few tokens (short) or of some dozens, with their steps (long)."
Mixes = Annotated[
    list[str] | None,
    _option(
        "--mix",
        "Batch composition: local and peer groups per update, or auto, the default of join; may "
        "be repeated. Default: 8/0, 6/2, 4/4, 2/6 and auto.",
        metavar="OWN/EXTERNAL",
    ),
]
Vary = Annotated[
    list[str] | None,
    _option(
        "--vary",
        "Additional arm: the default configuration with these keys changed, such as "
        "'mixture.local=8 mixture.target_groups=40'; may be repeated.",
        metavar="'KEY=VALUE ...'",
    ),
]
Controls = Annotated[bool, typer.Option("--controls", help="Run the controls as well.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each arm.")]
FirstSeed = Annotated[int, typer.Option("--first-seed", min=0, max=MAX_SEED, help="First seed.")]
Nodes = Annotated[int, typer.Option("--nodes", min=1, max=64, help="Nodes per swarm.")]
WORKERS = "Parallel processes; 0: one per core."
Workers = Annotated[int, typer.Option("--workers", min=0, help=WORKERS)]
Answers = Annotated[
    str,
    typer.Option(
        "--answers",
        metavar="short|long|games",
        help="Tasks: questions with answers of a few tokens (short), questions with intermediate "
        "steps of some dozens of tokens (long), or games of several turns (games).",
    ),
]
Lengths = Annotated[str, typer.Option("--answers", metavar="short|long", help=LENGTHS)]
BothLengths = Annotated[
    str | None, _option("--answers", f"{LENGTHS} Default: both.", metavar="short|long")
]
Bury = Annotated[
    int | None,
    _option(
        "--bury",
        "Steps of fine-tuning on noise for each base policy; more steps make right answers rarer "
        "at the start. Default: 100, or 0 with games, which start from the shipped model.",
        min=0,
    ),
]
Regimes = Annotated[
    list[str] | None,
    _option(
        "--regime",
        "Regime: equal, divided, strong, weak, dense, mixed, churn or useless; may be repeated. "
        "Default: all.",
        metavar="NAME",
    ),
]
HostileRegimes = Annotated[
    list[str] | None,
    _option(
        "--regime",
        "Regime: hostile-10, hostile-30, hostile-50, keys-3, keys-30, or habit, overlong, control, "
        "together or lucky (for games) with -25, -50, -75 or -keys-30; may be repeated. Default: "
        "all for these answers.",
        metavar="NAME",
    ),
]
REPORT = "experiments/reports/methods.md"
METHODS = f"Method of {REPORT}; may be repeated. Default: those of --vary, or all."
Methods = Annotated[list[str] | None, _option("--method", METHODS, metavar="NAME")]
Folder = Annotated[Path, typer.Option("--run-dir", help=FOLDER)]
ModelFolder = Annotated[
    Path | None,
    _option(
        "--model",
        "Folder of an instruct model that all nodes begin with, on easy levels of the task set "
        "starter. Default: tiny models.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="With --model, as policy.device.")]
Dtype = Annotated[
    str | None,
    _option(
        "--dtype",
        "With --model, as policy.dtype. Default: bfloat16; float32 on a CPU that emulates it.",
    ),
]
WarmStart = Annotated[
    int,
    typer.Option("--warm-start", min=0, help="With --model, supervised steps on examples before."),
]
SapoRounds = Annotated[int | None, _rounds("300, 120 with long answers, 100 with games")]
SapoFolder = Annotated[
    Path | None, _option("--run-dir", f"{FOLDER} Default: ./experiment-run/sapo (quick, -long).")
]
QUICK_SAPO = "One seed, fewer rounds, 8/0, 4/4 and auto, the shipped model."
SapoQuick = Annotated[bool, _option("--quick", QUICK_SAPO)]
RegimesRounds = Annotated[int | None, _rounds("150, or 90 with long answers", 2)]
RegimesFolder = Annotated[
    Path | None,
    _option("--run-dir", f"{FOLDER} Default: ./experiment-run/regimes (-quick, -long)."),
]
RegimesQuick = Annotated[
    bool,
    _option("--quick", "One seed, fewer rounds, strong and weak, 8/0 and auto, shipped model."),
]
MethodsRounds = Annotated[int | None, _rounds("150, or 80 with long answers")]


@command(
    epilog="Example: python -m experiments sapo --mix 8/0 --mix 4/4 --seeds 3 --run-dir my-table"
)
def sapo(
    mixes: Mixes = None,
    vary: Vary = None,
    controls: Controls = False,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    answers: Answers = "short",
    rounds: SapoRounds = None,
    nodes: Nodes = 8,
    bury: Bury = None,
    model: ModelFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    warm_start: WarmStart = 15,
    workers: Workers = 0,
    run_dir: SapoFolder = None,
    quick: SapoQuick = False,
    json: JsonOption = False,
) -> None:
    """Rerun the table of the SAPO paper (arXiv 2509.08721) with tiny models, or with --model.

    Each process simulates one swarm with the code of join, except for transport and clock. With
    --model on a GPU there is one at a time.
    """
    from experiments.report import run_sapo, sapo_table
    from experiments.run import Plan
    from experiments.settings import Settings
    from experiments.setups import SETUPS
    from node.monitor.record import Terminal

    length = _length(model, answers, bury)
    setup = SETUPS[length]
    bury = setup.bury_steps if bury is None else bury
    settings = Settings(nodes, rounds or setup.rounds, setup.model, bury, length)
    if quick:
        mixes, seeds = mixes or list(QUICK), 1
        settings = replace(settings, rounds=rounds or setup.quick_rounds, model=setup.recipe)
    if model:
        settings = real_settings(settings, model, device, dtype, warm_start)
        workers = workers or int(device != "cpu")
    arms = _arms(mixes, vary, controls)
    root = run_dir or _default_folder("quick" if quick else "sapo", length)
    plan = Plan(settings, arms, tuple(range(first_seed, first_seed + seeds)), workers)
    summaries = run_sapo(plan, root, Terminal(stderr=True))
    _print_results(root, sapo_table(settings, summaries), json)


@command(epilog="Example: python -m experiments regimes --regime churn --regime mixed --seeds 3")
def regimes(
    names: Regimes = None,
    mixes: Mixes = None,
    vary: Vary = None,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    answers: Lengths = "short",
    rounds: RegimesRounds = None,
    workers: Workers = 0,
    run_dir: RegimesFolder = None,
    quick: RegimesQuick = False,
    json: JsonOption = False,
) -> None:
    """Compare batch compositions in regimes in which sharing may hurt.

    Eight nodes each: unequal, divided or different nodes, dense rewards, churn and useless peers.
    """
    from experiments.regimes import REGIMES, find_regime
    from experiments.report import regimes_table, run_regimes
    from experiments.run import Plan
    from experiments.settings import Settings
    from experiments.setups import SETUPS, setup_name
    from node.monitor.record import Terminal

    length = setup_name(answers)
    setup = SETUPS[length]
    settings = Settings(rounds=rounds or setup.heterogeneous.rounds, answers=length)
    if quick:
        names, mixes, seeds = names or list(QUICK_REGIMES), mixes or ["8/0", "auto"], 1
        settings = replace(settings, rounds=rounds or setup.quick_rounds, model=setup.recipe)
    arms = _arms(mixes, vary)
    chosen = [find_regime(name) for name in dict.fromkeys(names or REGIMES)]
    which = tuple(range(first_seed, first_seed + seeds))
    plan = Plan(settings, arms, which, workers, tuple(chosen))
    root = run_dir or _default_folder("regimes-quick" if quick else "regimes", answers)
    summaries = run_regimes(plan, root, Terminal(stderr=True))
    _print_results(root, regimes_table(plan, summaries), json)


@command(
    epilog="Example: python -m experiments hostile --regime hostile-30 --regime keys-30 --seeds 2"
)
def hostile(
    names: HostileRegimes = None,
    seeds: Seeds = 5,
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Rounds of each node.")] = 150,
    answers: Lengths = "short",
    nodes: Annotated[int, typer.Option("--nodes", min=1, max=64, help="Honest nodes.")] = 7,
    model: ModelFolder = None,
    device: Device = "cpu",
    dtype: Dtype = None,
    warm_start: WarmStart = 15,
    workers: Workers = 0,
    run_dir: Folder = Path("experiment-run/hostile"),
    json: JsonOption = False,
) -> None:
    """Measure the effect of hostile peers on honest nodes with default settings.

    Hostile nodes share poisoned groups that pass every verifier, as a fraction of all nodes or
    under many keys. Useful attackers share ordinary groups: right answers in a style (habit), too
    long for honest nodes (overlong), with a control token (control), all three (together), or lucky
    wins of games (lucky). Honest nodes are compared with the same nodes alone and without hostile
    peers.
    """
    from experiments.hostile_report import run_hostile, table
    from experiments.regimes import find_regime, hostile_regimes
    from experiments.settings import Settings
    from experiments.setups import SETUPS
    from node.monitor.record import Terminal

    length = _length(model, answers)
    setup = SETUPS[length]
    settings = Settings(
        nodes, rounds, setup.model, setup.bury_steps, length, eval_every=50, eval_tasks=256
    )
    if model:
        settings = real_settings(replace(settings, bury=0), model, device, dtype, warm_start)
        workers = workers or int(device != "cpu")
    among = hostile_regimes(games=length == "games")
    chosen = [find_regime(name, among) for name in dict.fromkeys(names or among)]
    harms = run_hostile(settings, chosen, seeds, workers, run_dir, Terminal(stderr=True))
    _print_results(run_dir, table(settings, harms), json)


@command(epilog="Example: python -m experiments methods --method cispo --answers short --seeds 3")
def methods(
    names: Methods = None,
    vary: Vary = None,
    answers: BothLengths = None,
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    rounds: MethodsRounds = None,
    workers: Workers = 0,
    run_dir: Folder = Path("experiment-run/methods"),
    json: JsonOption = False,
) -> None:
    """Compare published methods with the default configuration.

    Each method sets some configuration keys of all eight nodes, which are equal otherwise. The
    comparison is at equal rounds, generated tokens and CPU time.
    """
    from experiments.methods import ROUNDS, find_methods, run_methods, supported, table
    from experiments.settings import Settings
    from experiments.setups import SETUPS, setup_name
    from node.monitor.record import Terminal

    chosen = find_methods(names, vary)
    screen = Terminal(stderr=True)
    if not names and not vary:
        chosen = supported(chosen, screen)
    lengths = (setup_name(answers, ROUNDS),) if answers else tuple(ROUNDS)
    settings = {
        length: Settings(
            rounds=rounds or ROUNDS[length],
            model=SETUPS[length].recipe,
            bury=SETUPS[length].bury_steps,
            answers=length,
        )
        for length in lengths
    }
    which = range(first_seed, first_seed + seeds)
    effects = run_methods(settings, chosen, which, workers, run_dir, screen)
    _print_results(run_dir, table(settings, chosen, effects), json)


command("scale", epilog="Example: python -m experiments scale --nodes 100 --scenario growth")(scale)


@command(epilog="Example: python -m experiments variants --model SmolLM2-135M-Instruct")
def variants(
    model: Annotated[Path, typer.Option("--model", help="Folder of an instruct model.")],
    rounds: Annotated[int, typer.Option("--rounds", min=2, help="Rounds of each node.")] = 30,
    eval_tasks: Annotated[
        int, typer.Option("--eval-tasks", min=1, help="Held-out tasks of an evaluation.")
    ] = 256,
    device: Device = "cpu",
    dtype: Dtype = None,
    run_dir: Annotated[Path, typer.Option("--run-dir", help="New folder of the results.")] = Path(
        "experiment-run/variants"
    ),
) -> None:
    """Train variants of one model in real nodes, together and each alone.

    The variants are the model itself, adapters on it, every second layer of it, and the model with
    half of its tokens.
    """
    from experiments.settings import Settings
    from experiments.variants import run_variants
    from node.monitor.record import Terminal

    settings = Settings(rounds=rounds, answers="starter", bury=0, eval_tasks=eval_tasks)
    settings = real_settings(settings, model, device, dtype, 0)
    say(run_variants(settings, run_dir, Terminal(stderr=True)))


@command("make-models", epilog="Example: python -m experiments make-models --only tiny")
def make_models(
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="NAME", help="Model to make. Default: all shipped ones."),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the models.", show_default="node/models")
    ] = MODELS,
) -> None:
    """Make and measure the shipped tiny models: ten minutes."""
    import torch

    from experiments.recipe.make import RECIPES, make, measure, save
    from node.policy.model_source import SHIPPED
    from swarm.groups import Split

    if only is not None and only not in RECIPES:
        raise UsageError("--only", only, f"Name one of {', '.join(sorted(RECIPES))}.")
    torch.set_num_threads(1)
    for name in [only] if only else SHIPPED:
        say(f"{name}:")
        made = make(name, MODEL_SEED, say)
        save(made, out / name)
        for split in Split:
            success = measure(
                made.model, made.tokenizer, split, MEASURED_TASKS, RECIPES[name].tasks
            )
            say(f"  {split.value}: {success.rate:.1%} right, {success.informative:.0%} informative")


def main(interrupted: Callable[[], bool]) -> int:
    """Run one command; see :func:`node.cli.program.main`."""
    return program.main(interrupted, app, PROGRAM)


def _arms(
    mixes: list[str] | None, vary: list[str] | None, controls: bool = False
) -> tuple[Arm, ...]:
    from experiments.arms import AUTO, CONTROLS, MIXES, mix, varied

    arms = (*(map(mix, mixes) if mixes else (*MIXES, AUTO)), *map(varied, vary or ()))
    names = {arm.name for arm in arms}
    return (*arms, *(arm for arm in CONTROLS if controls and arm.name not in names))


def _length(model: Path | None, answers: str, bury: int | None = None) -> Length:
    """Return the setup that ``--answers`` names, or that of a model of one's own."""
    from experiments.setups import setup_name

    if not model:
        return setup_name(answers)
    if answers != "short" or bury:
        remedy = "Its tasks are easy levels of starter, and nothing is buried: leave both out."
        raise UsageError("--answers or --bury", "beside --model", remedy)
    return "starter"


def real_settings(
    settings: Settings, model: Path, device: str, dtype: str | None, warm_start: int
) -> Settings:
    """Return the settings for a model of one's own, with the learning rate of its size."""
    from node.plan.choice import learning_rate
    from node.plan.machine import emulated
    from node.plan.model_shape import shape_of
    from node.policy.device import device_named
    from node.policy.model_source import config_folder

    name = str(model.expanduser().absolute())
    on = device_named(replace(settings, device=device).policy(name).device)
    half = "float32" if on.type == "cpu" and emulated("bfloat16") else "bfloat16"
    real = replace(settings, model=name, device=device, dtype=dtype or half, warm_start=warm_start)
    real.policy(name)
    shape = shape_of(config_folder(name), name)
    return replace(real, lr=learning_rate(shape.parameters, adapters=False))


def _default_folder(name: str, answers: str) -> Path:
    return Path("experiment-run") / (name if answers == "short" else f"{name}-{answers}")


def _print_results(root: Path, table: Table, json: bool) -> None:
    """Print the results of an experiment as a table or as JSON."""
    from node.monitor.record import Terminal

    if json:
        print_json(loads((root / "results.json").read_text(encoding="utf-8")))
        return
    console = Terminal()
    console.print(table)
    console.print(f"Tables: {root / 'table.md'}. Chart: {root / 'chart.png'}.")
