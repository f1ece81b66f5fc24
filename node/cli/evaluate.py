"""``swarm-node eval``: pass@k on questions that nobody trains on."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any

import typer

from node.cli.checkpoint_options import BestOption, StepOption, check_choice
from node.cli.common import (
    ConfigOption,
    DebugOption,
    JsonOption,
    SetOption,
    open_node,
    overrides_of,
    print_json,
)
from node.cli.evaluation_bar import evaluated
from node.cli.named_model import loading, model_of
from node.errors import UsageError
from node.monitor.terminal import say, say_on


def command(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Folder, hub id or shipped model. Left out: the newest checkpoint.",
            show_default=False,
        ),
    ] = None,
    tasks: Annotated[int, typer.Option("--tasks", min=1, help="Held-out tasks.")] = 64,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Completions a task.")] = 8,
    show: Annotated[
        int, typer.Option("--show", min=0, help="Tasks to print with all that was written.")
    ] = 0,
    step: StepOption = None,
    best: BestOption = False,
    k: Annotated[list[int] | None, typer.Option("--k", min=1, help="k of pass@k.")] = None,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Score a model on held-out tasks of this node's swarm."""
    check_choice(step, best, model)
    ks = sorted(set(k or [1, samples]))
    if ks[-1] > samples:
        raise UsageError("--k", ks[-1], f"Sample at least as many: --samples {ks[-1]}.")
    node = open_node(config, overrides_of(assignments))
    with loading():
        from node.policy.model_source import check_model

        if model:
            check_model(model)
        from node.evaluation.model_eval import Score, by_family, pinned_manifest

    manifest = pinned_manifest(node.folder)
    policy, name = model_of(node, model=model, step=step, best=best)
    evaluation = evaluated(node.config, manifest, policy, tasks=tasks, samples=samples)

    total = Score.of(evaluation, ks)
    families = {env: Score.of(part, ks) for env, part in by_family(evaluation).items()}
    if json:
        rows = {env: asdict(score) for env, score in families.items()}
        found = {"model": name, "samples": samples, **asdict(total), "families": rows}
        print_json(found | ({"shown": _shown(evaluation, show)} if show else {}))
        return
    for task in _shown(evaluation, show):
        _print_task(task)
    _print_scores(name, {**families, "all": total}, ks)


def _shown(evaluation: Any, count: int) -> list[dict[str, Any]]:
    """The first tasks with what was written, turn by turn, and what it was worth."""
    from node.monitor.groups import transcript

    rows = zip(
        evaluation.tasks, evaluation.prompts, evaluation.written, evaluation.rewards, strict=True
    )
    return [
        {
            "env": task.env,
            "level": task.level,
            "prompt": prompt,
            "completions": [
                {"reward": reward, "text": transcript(played.segments)}
                for played, reward in zip(written, rewards, strict=False)
            ],
        }
        for task, prompt, written, rewards in islice(rows, count)
    ]


def _print_task(task: dict[str, Any]) -> None:
    say(f"# {task['env']}, level {task['level']}")
    say_on(f"{task['prompt'] or ''}\n")
    for completion in task["completions"]:
        say(f"## reward {completion['reward']:.2f}")
        say_on(f"{completion['text']}\n")
    say("")


def _print_scores(model: str, scores: dict[str, Any], ks: list[int]) -> None:
    from rich.table import Table

    from node.monitor.terminal import Terminal

    table = Table(title=model)
    table.add_column("family")
    for column in ("tasks", "mean reward", *(f"pass@{k}" for k in ks)):
        table.add_column(column, justify="right")
    for name, score in scores.items():
        passed = (f"{score.pass_at[k]:.3f}" for k in ks)
        table.add_row(name, str(score.tasks), f"{score.mean_reward:.3f}", *passed)
    Terminal().print(table)
