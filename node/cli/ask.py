"""``swarm-node ask``: one question to the trained policy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from node.cli.checkpoint_options import BestOption, StepOption, check_choice
from node.cli.common import (
    ConfigOption,
    DebugOption,
    JsonOption,
    Node,
    SetOption,
    open_node,
    overrides_of,
    print_json,
)
from node.cli.named_model import loading, model_of
from node.monitor.terminal import say, say_on


def command(
    question: Annotated[
        str | None,
        typer.Argument(help="Left out: one is drawn that nobody trains on.", show_default=False),
    ] = None,
    family: Annotated[
        str | None,
        typer.Option("--family", help="Of this task family.", show_default=False),
    ] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Ask the untrained model of this node as well.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature",
            min=0.01,
            max=100.0,
            help="Sample at this temperature. Left out: the most probable answer.",
            show_default=False,
        ),
    ] = None,
    step: StepOption = None,
    best: BestOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Ask the trained policy, and hear what the verifier makes of its answer.

    The answer is printed as it is written. The verifier scores it where the question is one of this
    swarm's; of families with very many questions a typed one may not be recognised.
    """
    check_choice(step, best)
    node = open_node(config, overrides_of(assignments))
    with loading():
        from node.evaluation.asking import question_of
        from node.evaluation.model_eval import pinned_manifest, verifier_of

    manifest = pinned_manifest(node.folder)
    models = [model_of(node, step=step, best=best)]
    if base:
        models.append(model_of(node, model=node.config.policy.model))
    with verifier_of(node.config, manifest) as (verifier, levels):
        asked = question_of(verifier, manifest, levels, question, family)
        if not json:
            _show_question(asked)
        answers = [_answer(node, verifier, asked, model, temperature, json) for model in models]
    if json:
        task = asked.task
        about = {"family": task and task.env, "level": task and task.level}
        print_json({"prompt": asked.prompt, **about, "answers": answers})


def _show_question(asked: Any) -> None:
    task = asked.task
    say(f"question of {task.env}, level {task.level}:" if task else "question:")
    say_on(f"{_indented(asked.prompt)}\n")


def _answer(
    node: Node,
    verifier: Any,
    asked: Any,
    model: tuple[Any, str],
    temperature: float | None,
    quiet: bool,
) -> dict[str, Any]:
    """Have one model write, and score what it wrote."""
    from node.evaluation.asking import opinion, pieces

    policy, name = model
    most = node.config.engine.max_new_tokens
    if not quiet:
        say(f"{Path(name).name}:")
        say_on("  ")
    text = ""
    for piece in pieces(policy, asked.prompt, most, temperature):
        text += piece
        if not quiet:
            say_on(piece.replace("\n", "\n  "))
    reward, why = opinion(verifier, asked.task, text)
    if not quiet:
        say_on("\n" if text else "(nothing)\n")
        say(f"  no reward: {why}" if reward is None else f"  reward {reward:.2f}")
    return {"model": name, "text": text, "reward": reward, "unscored": why}


def _indented(text: str) -> str:
    return "".join(f"  {line}" for line in text.splitlines(keepends=True))
