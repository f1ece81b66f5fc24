"""``swarm-node play`` and ``export``: play one task, or write out a checkpoint."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from node.cli.options import (
    LOADING,
    BestOption,
    ConfigOption,
    DebugOption,
    JsonOption,
    StepOption,
    check_choice,
    open_node,
    print_json,
    waiting,
)
from node.errors import NodeError, UsageError
from node.monitor.output import say, say_on

if TYPE_CHECKING:
    from protocol.manifest import EnvSpec


MOST_SEED = (1 << 63) - 1


def play_command(
    family: Annotated[str, typer.Argument(metavar="FAMILY", help="A family of the catalogue.")],
    catalogue: Annotated[
        str, typer.Option("--catalogue", metavar="NAME|FILE", help="A shipped one, or a TOML file.")
    ] = "games",
    level: Annotated[int, typer.Option("--level", min=0, help="Of the family.")] = 0,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", min=0, max=MOST_SEED, help="Of the task. Left out: another one each time."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Have this one play: a folder, a hub id or a shipped model, such as tiny-games.",
        ),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="Where the family lies, if it is in a file.")
    ] = None,
    debug: DebugOption = False,
) -> None:
    """Play a task by hand or with a model; the verifier scores it.

    Every line that you type is a turn. Ctrl-D ends the task early, with the reward so far.
    """
    from node.errors import CatalogueError
    from node.tasks.catalogue import Allowed, in_file, load_catalogue
    from node.tasks.verifier.verifier import Verifier
    from swarm.groups import TaskRef
    from swarm.verification import JudgeRefused

    specs = {spec.name: spec for spec in load_catalogue(catalogue)}
    if family not in specs:
        raise UsageError("FAMILY", family, f"The catalogue has: {', '.join(specs)}.")
    _check(specs[family], level, file, needs_file=in_file(specs[family]))
    number = random.Random().getrandbits(63) if seed is None else seed
    task = TaskRef(family, level, number)
    allowed = Allowed({family: file} if file else {})
    try:
        with Verifier([specs[family]], allowed, outside=True) as verifier:
            verifier.start()
            if model is None:
                _by_hand(verifier, task)
            else:
                _by_model(verifier, task, model)
    except (CatalogueError, JudgeRefused) as refused:
        remedy = "Correct that, or play another family."
        raise NodeError("the task cannot be played", str(refused), remedy) from refused


def _check(spec: EnvSpec, level: int, file: Path | None, *, needs_file: bool) -> None:
    if level >= len(spec.levels):
        remedy = f"Levels begin at 0; this family has {len(spec.levels)}."
        raise UsageError("--level", level, remedy)
    if file is not None and not file.is_file():
        remedy = f"There is no such file: name the one that {spec.name!r} lies in."
        raise UsageError("--file", file, remedy)
    if file is None and needs_file:
        raise UsageError(f"{spec.name!r} lies in a file", None, "Name its file with --file.")


def _by_hand(verifier: Any, task: Any) -> None:
    from node.trajectories.player import Session

    session = Session(verifier, task)
    _show(session.first)
    for line in sys.stdin:
        turn = session.take(line.rstrip("\n"))
        if turn.reward is not None:
            say(f"reward {turn.reward:.2f}")
            return
        _show(turn.observation)
    say(f"reward so far {session.leave():.2f}")


def _by_model(verifier: Any, task: Any, model: str) -> None:
    with waiting(LOADING):
        from node.config.learning import PolicySection
        from node.engines.engine import Sampling
        from node.engines.transformers.engine import TransformersEngine
        from node.policy.policy import Policy
        from node.trajectories.player import Player
        from node.trajectories.trajectory import TurnLimits

        policy = Policy.load(PolicySection(model=model))
    (prompt,) = verifier.prompts([task])
    _show(prompt)
    limits = TurnLimits(turns=32, turn_tokens=256, tokens=4096)
    player = Player(policy, TransformersEngine(policy, seed=task.seed), verifier, limits)
    sampling = Sampling(max_new_tokens=limits.turn_tokens)
    ((played,),) = player.play([task], [policy.encode_prompt(prompt)], 1, sampling)
    for turn in played.turns:
        say_on(f"{turn.sample.text}\n")
        if turn.observation is not None:
            _show(turn.observation)
    if played.lost is not None:
        raise played.lost
    reward = played.reward
    if reward is None:
        reward = verifier.judge(task, [played.text]).rewards[0]
    say(f"reward {reward:.2f}")


def _show(text: str) -> None:
    say_on("".join(f"» {line}\n" for line in text.splitlines() or [""]))


def export_command(
    out: Annotated[Path, typer.Option("--out", help="New folder for the model.")],
    adapter: Annotated[
        bool, typer.Option("--adapter", help="Write the LoRA adapter alone, in peft's layout.")
    ] = False,
    push: Annotated[
        str | None,
        typer.Option(
            "--push",
            metavar="OWNER/NAME",
            help="Upload it to the model hub that you are logged in to, into a private repository "
            "where there is none of that name.",
        ),
    ] = None,
    step: StepOption = None,
    best: BestOption = False,
    config: ConfigOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write a checkpoint for transformers and vLLM to load.

    It takes the newest checkpoint, unless --step or --best chooses another.
    """
    check_choice(step, best)
    if push is not None:
        from node.evaluation.export import check_pushable

        check_pushable(push)
    node = open_node(config)
    with waiting(LOADING) as tell:
        from node.evaluation.export import push as upload
        from node.evaluation.export import write_card
        from node.policy.checkpoint_policy import chosen, export

        with chosen(node.folder, step=step, best=best) as loaded:
            for note in loaded.notes:
                say(note, err=True)
            export(node.config, loaded, out, adapter=adapter, tell=tell)
            write_card(node.config, node.folder, loaded, out, adapter=adapter)
    if not json:
        say(f"wrote {out} from {loaded.path.name}")
    address = None
    if push is not None:
        address = upload(out, push)
        say(f"pushed it to {address}", err=True)
    if json:
        facts = {"model": str(out), "checkpoint": str(loaded.path), "state": loaded.state}
        print_json({**facts, "pushed": address})
