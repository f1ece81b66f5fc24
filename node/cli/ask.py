"""``swarm-node ask``: one question to the trained policy."""

from __future__ import annotations

import random
from collections.abc import Iterator
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
from node.errors import UsageError
from node.monitor.printable import say, say_on

LOOKED_AT = 4096
"""Instances of a swarm's families among which a typed question is looked for: seconds."""


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
        from node.evaluation.model_eval import pinned_manifest, verifier_of

    manifest = pinned_manifest(node.folder)
    models = [model_of(node, step=step, best=best)]
    if base:
        models.append(model_of(node, model=node.config.policy.model))
    with verifier_of(node.config, manifest) as (verifier, levels):
        asked = _question(verifier, manifest, levels, question, family)
        if not json:
            _show_question(asked)
        answers = [_answer(node, verifier, asked, model, temperature, json) for model in models]
    if json:
        task = asked.task
        about = {"family": task and task.env, "level": task and task.level}
        print_json({"prompt": asked.prompt, **about, "answers": answers})


def _question(
    verifier: Any, manifest: Any, levels: Any, question: str | None, family: str | None
) -> Any:
    from node.evaluation.question import drawn, recognised

    if family is not None:
        served = dict.fromkeys(env for env, _ in levels)
        levels = [pair for pair in levels if pair[0] == family]
        if not levels:
            raise UsageError("--family", family, f"This swarm has: {', '.join(served)}.")
    rng = random.Random()
    if question is None:
        return drawn(verifier, levels, rng)
    if not question.strip():
        raise UsageError("QUESTION", question, "Type one, or leave it out to have one drawn.")
    return recognised(verifier, manifest.catalogue, levels, question, rng, LOOKED_AT)


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
    policy, name = model
    if not quiet:
        say(f"{Path(name).name}:")
        say_on("  ")
    text = ""
    for piece in _pieces(node, policy, asked.prompt, temperature):
        text += piece
        if not quiet:
            say_on(piece.replace("\n", "\n  "))
    reward, why = _opinion(verifier, asked.task, text)
    if not quiet:
        say_on("\n" if text else "(nothing)\n")
        say(f"  no reward: {why}" if reward is None else f"  reward {reward:.2f}")
    return {"model": name, "text": text, "reward": reward, "unscored": why}


def _opinion(verifier: Any, task: Any, text: str) -> tuple[float | None, str | None]:
    """The reward of an answer, or why there is none."""
    from swarm.judge import JudgeRefused

    if task is None:
        return None, "no family of this swarm is known to ask this"
    try:
        return verifier.judge(task, [text]).rewards[0], None
    except JudgeRefused as refused:
        return None, str(refused)


def _pieces(node: Node, policy: Any, prompt: str, temperature: float | None) -> Iterator[str]:
    from node.policy.streaming import stream

    ids = policy.encode_prompt(prompt)
    if len(ids) >= policy.context_length:
        raise UsageError(
            "QUESTION",
            f"{len(ids)} tokens, context {policy.context_length}",
            "Ask a shorter one.",
        )
    most = node.config.engine.max_new_tokens
    return stream(policy, ids, max_new_tokens=most, temperature=temperature)


def _indented(text: str) -> str:
    return "".join(f"  {line}" for line in text.splitlines(keepends=True))
