"""``swarm-node demo``, ``plot`` and ``play``: try a swarm, chart it, play one task."""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.model import say_reading
from node.cli.options import LOADING, ConfigOption, JsonOption, open_node, waiting
from node.config.overrides import parse_mix
from node.errors import NodeError, TaskSetError, UsageError
from node.monitor.output import say, say_on
from node.monitor.record import RoundRecord, Terminal
from node.storage.atomic_files import writing
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import VerifierError

ROUNDS, REAL_MINUTES = 150, 25.0
NODES, LARGE_NODES = 4, 2


def demo_command(
    nodes: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Nodes that train. [default: 4; 2 with vLLM or --model]"),
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=0, help="Rounds per node; 0: until Ctrl-C. [default: 150; 25 minutes with --model]"
        ),
    ] = None,
    mix: Annotated[
        str, typer.Option(metavar="OWN/EXTERNAL", help="Local and peer groups in an update.")
    ] = "2/6",
    run_dir: Annotated[
        Path | None,
        typer.Option(help="New folder for the demo. [default: a new folder in ./demo-run]"),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**62, help="Random seed of the nodes.")] = 0,
    engine: Annotated[
        str, typer.Option(metavar="KIND", help="Rollout engine: transformers, vllm, …")
    ] = "transformers",
    transport: Annotated[
        str | None,
        typer.Option(
            metavar="KIND", help="Peer-to-peer stack: hivemind, libp2p, …; mixed: both of these."
        ),
    ] = None,
    task_set: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Task set: tiny, or games of several turns. [default: tiny; starter with --model]",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="DIR", help="Real model for all nodes: a folder or a Hugging Face model id."
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Device of the real model: auto, cpu, cuda, cuda:1 or mps. [default: auto]"
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Start a bootstrap node and several nodes with tiny models, and show them live.

    The command prints how to join from another terminal, and a summary at the end. With --rounds 0
    the demo runs until Ctrl-C. With --model the nodes train a real model: the first node evaluates
    it on the tasks, and all nodes use the suggested settings.
    """
    from node.config.registry import ENGINES
    from node.demo.run import DEFAULT_TRANSPORT, DemoSettings, run
    from node.demo.summary import table

    if device is not None and not model:
        remedy = "This option requires a real model: name one with --model."
        raise UsageError("--device", device, remedy)
    local, external = parse_mix(mix)
    nodes = nodes or (LARGE_NODES if model or ENGINES.load(engine).beside else NODES)
    minutes = REAL_MINUTES if model and rounds is None else 0.0
    rounds = rounds if rounds is not None else 0 if model else ROUNDS
    tasks = task_set or ("starter" if model else "tiny")
    stack = transport or DEFAULT_TRANSPORT
    model = str(Path(model).absolute()) if model and Path(model).exists() else model or ""
    settings = DemoSettings(
        nodes, rounds, minutes, local, external, seed, engine, stack, tasks, model, device or "auto"
    )
    folder = run_dir or Path("demo-run") / time.strftime("%Y%m%d-%H%M%S")
    summary = run(settings, folder, Terminal(stderr=json))
    if json:
        typer.echo(summary.as_json())
        return
    console = Terminal()
    console.print(table(summary))
    console.print(f"wrote the chart to {summary.chart}")


CONFIG, METRICS = "node.toml", "metrics.jsonl"


def plot_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders, or folders that contain some. [default: that of --config]",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File to write: .png, .svg or .pdf.")] = None,
    terminal: Annotated[
        bool,
        typer.Option(
            "--terminal", help="Draw with characters on standard output. [default without --out]"
        ),
    ] = False,
    smooth: Annotated[
        int | None,
        typer.Option(min=1, help="Rounds to average for each point. [default: 5% of all rounds]"),
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Draw reward, sharing and speed by round, of one run or of several side by side.

    The nodes may be running. The command writes only the chart.
    """
    from node.monitor.history import ENDINGS, draw_runs, run_table, window_for

    if out is not None and out.suffix.lower() not in ENDINGS:
        raise UsageError("--out", out, f"Name a file that ends in {', '.join(ENDINGS)}.")
    with waiting("reading the records of the runs") as update:
        records = histories(runs or [], config)
        window = smooth or window_for(list(records.values()))
        if out is not None:
            update("drawing the chart")
            with writing(out):
                draw_runs(records, window, out)
    if out is not None:
        say(f"wrote {out}")
    if out is None or terminal:
        console = Terminal()
        console.print_table(run_table(records, window, console))


def histories(given: Sequence[Path], config: Path | None) -> dict[str, list[RoundRecord]]:
    """Read the records of runs and of the config's node by a name for each.

    The config's is read if it is named or no run is. Raises NodeError if there are no records.
    """
    from node.monitor.history import read_history

    by_folder: dict[Path, list[RoundRecord]] = {}
    failures: list[NodeError] = []
    own_root = [open_node(config).folder.root] if config or not given else []
    for path in (*given, *own_root):
        try:
            for folder in _run_folders(path):
                if history := read_history(folder):
                    by_folder[folder.resolve()] = history
                else:
                    raise _no_round(folder)
        except UsageError:
            raise
        except NodeError as error:
            failures.append(error)
    if not by_folder:
        raise failures[0]
    for reason in failures:
        say(f"skipped: {reason}", err=True)
    return dict(zip(_names(list(by_folder)), by_folder.values(), strict=True))


def _run_folders(path: Path) -> list[Path]:
    if not path.exists():
        remedy = "Name a run folder, such as swarm-run, or one that holds several."
        raise UsageError("there is no run folder", path, remedy)
    if (path / METRICS).exists():
        return [path]
    if (path / CONFIG).exists() or path.suffix == ".toml":
        root = open_node(path).folder.root
        if not (root / METRICS).exists():
            raise _no_round(root)
        return [root]

    def by_number(path: Path) -> list[tuple[int, str]]:
        parts = re.split(r"(\d+)", str(path))
        return [(int(part), "") if part.isdigit() else (0, part) for part in parts]

    paths = sorted(path.glob(f"*/{METRICS}"), key=by_number) if path.is_dir() else []
    if not paths:
        remedy = f"Name a folder with a {METRICS}; every node that trains writes one."
        raise NodeError("not a run folder", path, remedy)
    return [metrics.parent for metrics in paths]


def _no_round(folder: Path) -> NodeError:
    remedy = "Wait until its node finishes a round. A bootstrap node has no rounds."
    return NodeError("no recorded round in", folder, remedy)


def _names(folders: Sequence[Path]) -> list[str]:
    for parts in range(1, max(len(folder.parts) for folder in folders)):
        names = [str(Path(*folder.parts[-parts:])) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


MOST_SEED = (1 << 63) - 1
FENCE = '"""'  # a line before and after an answer of several lines


def play_command(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="Task family of the task set.")],
    task_set: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="Name of a shipped task set, or a TOML file.")
    ] = "games",
    level: Annotated[int, typer.Option(min=0, help="Difficulty level of the family, from 0.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_SEED, help="Random seed of the task. [default: a new one each time]"
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help="Folder, Hugging Face model id or shipped model that plays. [default: you play]",
        ),
    ] = None,
    file: Annotated[Path | None, typer.Option(help="Another file of the family.")] = None,
) -> None:
    """Play a task by hand or with a model; the verifier scores it.

    Every line that you type is a turn. For an answer of several lines, type three double quotes in
    a line of their own before it and after it. Ctrl-D ends the task early, with the reward so far.
    """
    from node.tasks.task_set import Allowed, load_task_set, own_files
    from node.tasks.verifier.verifier import Verifier

    specs = {spec.name: spec for spec in load_task_set(task_set)}
    if family not in specs:
        remedy = f"Task set {task_set!r} has: {', '.join(specs)}; --task-set names another one."
        raise UsageError("FAMILY", family, remedy)
    _check(specs[family], level, file)
    task = TaskRef(family, level, random.Random().getrandbits(63) if seed is None else seed)
    # The player is the user, or a model that the user names.
    allowed = Allowed({family: file} if file else own_files(task_set), code_execution=[family])
    try:
        with Verifier([specs[family]], allowed, outside=True) as verifier:
            with waiting("opening the task family"):
                verifier.start()
            if model is None:
                _by_hand(verifier, task)
            else:
                _by_model(verifier, task, model)
    except (TaskSetError, VerifierError) as error:
        remedy = "Correct that, or play another family."
        raise NodeError("the task cannot be played", str(error), remedy) from error


def _check(spec: EnvSpec, level: int, file: Path | None) -> None:
    if level >= len(spec.levels):
        remedy = f"Levels begin at 0; this family has {len(spec.levels)}."
        raise UsageError("--level", level, remedy)
    if file is not None and not file.is_file():
        raise UsageError("--file", file, f"There is no such file. Name the file of {spec.name}.")


def _by_hand(verifier: Any, task: Any) -> None:
    from node.trajectories.player import Session

    session = Session(verifier, task)
    _show(session.first)
    for answer in typed_answers(sys.stdin):
        turn = session.take(answer)
        if turn.reward is not None:
            say(f"reward {turn.reward:.2f}" + (f": {turn.fault}" if turn.fault else ""))
            say_reading(**asdict(verifier.explain(task, answer)))
            return
        _show(turn.observation)
    say(f"reward so far {session.leave():.2f}")


def typed_answers(typed: Iterable[str]) -> Iterator[str]:
    """Yield one answer per line, or one of the lines between two fences."""
    lines = (line.rstrip("\n") for line in typed)
    for line in lines:
        if line.rstrip() != FENCE:
            yield line
        else:
            yield "\n".join(takewhile(lambda each: each.rstrip() != FENCE, lines))


def _by_model(verifier: Any, task: Any, model: str) -> None:
    with waiting(LOADING):
        from node.config.learning import PolicySection
        from node.engines.engine import Sampling
        from node.engines.transformers.agreement import check_agreement
        from node.engines.transformers.engine import TransformersEngine
        from node.policy.policy import Policy
        from node.trajectories.player import Player
        from node.trajectories.trajectory import TurnLimits

        policy = Policy.load(PolicySection(model=model))
        check_agreement(policy, trains=False)
    (prompt,) = verifier.prompts([task])
    _show(prompt)
    limits = TurnLimits(turns=32, turn_tokens=256, tokens=4096)
    player = Player(policy, TransformersEngine(policy, seed=task.seed), verifier, limits)
    sampling = Sampling(max_new_tokens=limits.turn_tokens)
    ((trajectory,),) = player.play([task], [policy.encode_prompt(prompt)], 1, sampling)
    for turn in trajectory.turns:
        say_on(f"{turn.sample.text}\n")
        if turn.observation is not None:
            _show(turn.observation)
    if trajectory.lost is not None:
        raise trajectory.lost
    reward = trajectory.reward
    if reward is None:
        reward = verifier.verify(task, [trajectory.text]).rewards[0]
    say(f"reward {reward:.2f}")
    say_reading(**asdict(verifier.explain(task, trajectory.text)))


def _show(text: str) -> None:
    say_on("".join(f"» {line}\n" for line in text.splitlines() or [""]))
