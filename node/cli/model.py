"""``swarm-node eval``, ``compare`` and ``ask``: score and question models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from shlex import quote
from textwrap import indent
from typing import Annotated, Any

import typer
from rich.table import Column, Table

from node.cli.options import (
    LOADING,
    BestOption,
    ConfigOption,
    JsonOption,
    LoadedNode,
    SetOption,
    StepOption,
    check_choice,
    model_of,
    node_named,
    open_node,
    open_trained,
    overrides_of,
    print_json,
    waiting,
)
from node.errors import UsageError
from node.monitor.output import as_typed, display_on, printable, say, say_on
from node.monitor.record import Terminal, figure_columns
from swarm.common.util import counted


def evaluated(
    config: Any, manifest: Any, policy: Any, name: str = "tasks", *, tasks: int, **options: Any
) -> Any:
    """Call :func:`node.evaluation.comparison.evaluate` with a progress bar ``name``."""
    from rich import progress

    from node.evaluation.comparison import evaluate

    console = Terminal(stderr=True)
    with (
        progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.MofNCompleteColumn(),
            progress.TimeElapsedColumn(),
            progress.TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as bar,
        display_on(console),
    ):
        task_id = bar.add_task(name, total=tasks)
        options["progress"] = lambda total, done: bar.update(task_id, total=total, completed=done)
        return evaluate(config, manifest, policy, tasks=tasks, **options)


SEED = 0  # of what both sample, so that a comparison is reproducible

PROMPT_CHARACTERS = 200


def compare_command(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="Node (config or folder) or model (folder, Hugging Face id or shipped model).",
        ),
    ],
    second: Annotated[
        str, typer.Argument(metavar="B", help="The node or model to compare it with.")
    ],
    tasks: Annotated[int, typer.Option(min=2, help="Number of held-out tasks.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Completions per task.")] = 8,
    show: Annotated[
        int, typer.Option(min=0, help="Tasks to print, those with the largest differences first.")
    ] = 5,
    best: BestOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Report which of two models is better, by task family, and where they differ.

    Both models get the same held-out tasks: those of the node in --config, or else of the first of
    the two that is a node. The command uses the newest checkpoint of a node, or the best one with
    --best.
    """
    sides = {name: node_named(name) for name in (first, second)}
    path = config or next((side.path for side in sides.values() if side), None)
    node = open_node(path, overrides_of(assignments))
    with waiting(LOADING):
        from node.evaluation.comparison import Comparison, manifest_of

    manifest = manifest_of(node.folder)
    options = {"tasks": tasks, "samples": samples, "seed": SEED}
    results = []
    for name in (first, second):
        side = sides[name]
        policy, _ = model_of(side, best=best) if side else model_of(node, model=name)
        results.append(evaluated(node.config, manifest, policy, printable(name), **options))
    comparison = Comparison.of(*results)
    if json:
        print_json(_plain(comparison, first, second, samples))
        return
    _show(comparison, first, second, show, tasks)


def _plain(comparison: Any, first: str, second: str, samples: int) -> dict[str, Any]:
    return {
        "first": first,
        "second": second,
        "samples": samples,
        **_figures(comparison.all),
        "families": {env: _figures(part) for env, part in comparison.families.items()},
        "disputed": [
            {key: getattr(row.task, key) for key in ("env", "level", "seed")}
            | {"prompt": row.prompt, "first": row.first, "second": row.second}
            for row in comparison.disputed
        ],
    }


def _figures(part: Any) -> dict[str, Any]:
    return {
        "tasks": part.tasks,
        "questions": part.questions,
        "reward_first": part.first,
        "reward_second": part.second,
        "gain": part.gain.mean,
        "margin": part.gain.margin,
        "beyond_noise": part.gain.beyond_noise,
    }


def _show(comparison: Any, first: str, second: str, show: int, tasks: int) -> None:
    terminal = Terminal()
    columns = figure_columns("tasks", "A", "B", "B − A", "95 %", no_wrap=False)
    table = Table("family", *columns, title=f"A {first}, B {second}", title_justify="left")
    for name, part in {**comparison.families, "all": comparison.all}.items():
        gain = part.gain
        margin = "" if gain.margin is None else f"± {gain.margin:.3f}"
        figures = f"{part.first:.3f}", f"{part.second:.3f}", f"{gain.mean:+.3f}", margin
        table.add_row(name, str(part.tasks), *figures)
    terminal.print(table)
    total, gain = comparison.all, comparison.all.gain
    if note := _fewer(total.tasks, tasks):
        terminal.print(note)
    winner = f"{'B' if gain.mean > 0 else 'A'} is better on tasks like these"
    no_winner = "no significant difference; use more --tasks to detect smaller ones"
    terminal.print(winner if gain.beyond_noise else no_winner)
    if comparison.disputed[:show]:
        terminal.print(differences(comparison.disputed, show))


def _fewer(found: int, wanted: int) -> str:
    """Return that there are fewer held-out tasks than asked for; empty if there are as many."""
    text = f"{counted(found, 'held-out task')} of {wanted} differ: there are too few questions"
    return text if found < wanted else ""


def differences(disputed: Sequence[Any], show: int) -> Table:
    """Return a table of the first ``show`` tasks on which two models differ."""
    title = f"they differ on {counted(len(disputed), 'task')}; the largest differences:"
    columns = [Column("task", overflow="fold"), *figure_columns("A", "B", no_wrap=False)]
    table = Table("family", *columns, title=title, title_justify="left")
    for row in disputed[:show]:
        prompt = printable(" ".join((row.prompt or "").split()), PROMPT_CHARACTERS)
        table.add_row(row.task.env, prompt, f"{row.first:.3f}", f"{row.second:.3f}")
    return table


def evaluate_command(
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder, Hugging Face model id or shipped model. [default: the newest checkpoint]"
        ),
    ] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Number of held-out tasks.")] = 64,
    samples: Annotated[int, typer.Option(min=1, help="Completions per task.")] = 8,
    show: Annotated[
        int, typer.Option(min=0, help="Number of tasks to print with all completions.")
    ] = 0,
    step: StepOption = None,
    best: BestOption = False,
    family: Annotated[
        list[str] | None, typer.Option(help="Task family to evaluate; repeatable. [default: all]")
    ] = None,
    k: Annotated[list[int] | None, typer.Option(min=1, help="k of pass@k; repeatable.")] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Score a model on held-out tasks of this node's swarm."""
    check_choice(step, best, model)
    ks = sorted(set(k or [1, samples]))
    if ks[-1] > samples:
        raise UsageError("--k", ks[-1], f"Sample at least as many: --samples {ks[-1]}.")
    node = open_node(config, overrides_of(assignments))
    with waiting(LOADING):
        from node.policy.model_source import check_model

        if model:
            check_model(model)
        from node.evaluation.comparison import Score, by_family, manifest_of, of_families

    manifest = manifest_of(node.folder)
    of_families([(env.name, 0) for env in manifest.catalogue], family)  # before the model
    policy, name = model_of(node, model=model, step=step, best=best)
    options: dict[str, Any] = {"tasks": tasks, "samples": samples}
    evaluation = evaluated(node.config, manifest, policy, families=family, **options)
    total = Score.of(evaluation, ks)
    families = {env: Score.of(part, ks) for env, part in by_family(evaluation).items()}
    shown = _shown(node, manifest, evaluation, show) if show else []
    if json:
        scores = {env: asdict(score) for env, score in families.items()}
        result = {"model": name, "samples": samples, **asdict(total), "families": scores}
        print_json(result | ({"shown": shown} if show else {}))
        return
    for task in shown:
        say(f"# {task['env']}, level {task['level']}")
        say_on(f"{task['prompt'] or ''}\n")
        for completion in task["completions"]:
            say(f"## reward {completion['reward']:.2f}")
            say_on(f"{completion['text']}\n")
            say_reading(completion["read"], completion["right"])
        say("")
    _print_scores(name, {**families, "all": total}, ks)
    if note := _fewer(total.tasks, tasks):
        say(note)


def _shown(node: LoadedNode, manifest: Any, result: Any, count: int) -> list[dict[str, Any]]:
    from node.evaluation.comparison import verifier_of
    from node.monitor.groups import transcript

    rows = zip(result.tasks, result.prompts, result.trajectories, result.rewards, strict=True)
    with verifier_of(node.config, manifest) as (verifier, _):
        return [
            {
                "env": task.env,
                "level": task.level,
                "prompt": prompt,
                "completions": [
                    {"reward": reward, "text": text, **asdict(verifier.explain(task, text))}
                    for trajectory, reward in zip(trajectories, rewards, strict=False)
                    for text in [transcript(trajectory.segments)]
                ],
            }
            for task, prompt, trajectories, rewards in islice(rows, count)
        ]


def say_reading(read: str | None, right: str | None, margin: str = "") -> None:
    """Print the answer that was read in a completion, and a right one if it is another."""
    if read is not None:
        say(f"{margin}answer read: {read or '(none)'}")
        if right not in (None, read):
            say(f"{margin}right answer: {right}")


def _print_scores(model: str, scores: dict[str, Any], ks: list[int]) -> None:
    names = "tasks", "mean reward", *(f"pass@{k}" for k in ks)
    table = Table("family", *figure_columns(*names, no_wrap=False), title=model)
    for name, score in scores.items():
        pass_rates = (f"{score.pass_at[k]:.3f}" for k in ks)
        table.add_row(name, str(score.tasks), f"{score.mean_reward:.3f}", *pass_rates)
    Terminal().print(table)


def ask_command(
    question: Annotated[
        str | None, typer.Argument(help="Question to ask. [default: a held-out task sample]")
    ] = None,
    family: Annotated[str | None, typer.Option(help="Task family of the question.")] = None,
    base: Annotated[
        bool, typer.Option("--base", help="Also ask the untrained model of this node.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(min=0.01, max=100.0, help="Sampling temperature. [default: greedy decoding]"),
    ] = None,
    step: StepOption = None,
    best: BestOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the trained policy a question, and show the verifier's score of its answer.

    The command prints the answer as it is generated. The verifier scores it if the question belongs
    to this swarm. In families with very many questions, it may not recognize one that you type.
    """
    check_choice(step, best)
    node = open_trained(config, overrides_of(assignments))
    with waiting(LOADING):
        from node.evaluation.comparison import manifest_of, of_families, question_of, verifier_of

    manifest = manifest_of(node.folder)
    of_families([(env.name, 0) for env in manifest.catalogue], [family] if family else None)
    models = [model_of(node, step=step, best=best)]
    if base:
        models.append(model_of(node, model=node.config.policy.model))
    with verifier_of(node.config, manifest) as (verifier, levels):
        request = question_of(verifier, manifest, levels, question, family)
        task = request.task
        if not json:
            say(f"question of {task.env}, level {task.level}:" if task else "question:")
            say_on(f"{indent(request.prompt, '  ', lambda line: True)}\n")
        answers = [_answer(node, verifier, request, model, temperature, json) for model in models]
    if json:
        labels = {"family": task and task.env, "level": task and task.level}
        print_json({"prompt": request.prompt, **labels, "answers": answers})


def _answer(
    node: LoadedNode,
    verifier: Any,
    request: Any,
    model: tuple[Any, str],
    temperature: float | None,
    quiet: bool,
) -> dict[str, Any]:
    from node.evaluation.comparison import opinion, pieces, silence

    policy, name = model
    limit = node.config.engine.max_new_tokens
    if not quiet:
        say(f"{Path(name).name}:")
        say_on("  ")
    text = ""
    for chunk in pieces(policy, request.prompt, limit, temperature):
        text += chunk
        if not quiet:
            say_on(chunk.replace("\n", "\n  "))
    reward, reason = opinion(verifier, request.task, text)
    note = silence(text, request, temperature)
    found = asdict(verifier.explain(None if reason else request.task, text))
    if not quiet:
        say_on(f"({note})\n" if note else "\n")
        say(f"  no reward: {reason}" if reward is None else f"  reward {reward:.2f}")
        say_reading(**found, margin="  ")
    about = {"model": name, "text": text, "reward": reward, "unscored": reason, "empty": note}
    return about | found


def warm_start_command(
    steps: Annotated[int, typer.Option(min=1, help="Maximum steps of 16 examples.")] = 60,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train a new node's model on the form of the answers, before it joins.

    This is a short supervised phase on generated examples of the swarm's own tasks, for a model
    that solves none of them. It ends as soon as enough answers are correct for reinforcement
    learning. The command writes the result next to the base model and sets policy.model to it.
    """
    node = open_node(config, overrides_of(assignments))
    with waiting(LOADING):
        from node.run.warm_start import warm_start

    with node.folder.locked():
        record = warm_start(
            node.config, node.folder, node.path, steps, lambda line: say(line, err=json)
        )
    if json:
        print_json(asdict(record))
        return
    say(as_typed(f"next: swarm-node join --config {quote(str(node.path))}"))
