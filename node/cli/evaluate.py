"""``swarm-node eval``: pass@k on questions that nobody trains on."""

from __future__ import annotations

from dataclasses import asdict
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
from node.errors import UsageError
from node.monitor.printable import say


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
    from node.evaluation.model_eval import Score, by_family, pinned_manifest

    manifest = pinned_manifest(node.folder)
    policy, name = _policy(node, model, step, best)
    evaluation = _with_progress(node.config, manifest, policy, tasks, samples)

    total = Score.of(evaluation, ks)
    families = {env: Score.of(part, ks) for env, part in by_family(evaluation).items()}
    if json:
        rows = {env: asdict(score) for env, score in families.items()}
        print_json({"model": name, "samples": samples, **asdict(total), "families": rows})
        return
    _show(name, {**families, "all": total}, ks)


def _policy(node: Any, model: str | None, step: int | None, best: bool) -> tuple[Any, str]:
    """What is to be scored, and what it is called."""
    from node.config.learning import PolicySection
    from node.policy.checkpoint_policy import checkpoint_policy, chosen
    from node.policy.policy import Policy

    wanted = node.config.policy
    if model:
        named = PolicySection(model=model, dtype=wanted.dtype, device=wanted.device)
        return Policy.load(named), model
    with chosen(node.folder, step=step, best=best) as loaded:
        for note in loaded.notes:
            say(note, err=True)
        return checkpoint_policy(wanted, loaded), str(loaded.path)


def _with_progress(config: Any, manifest: Any, policy: Any, tasks: int, samples: int) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from node.monitor.terminal import Terminal

    columns = (TextColumn("tasks"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Terminal(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        row = bar.add_task("tasks", total=tasks)
        from node.evaluation.model_eval import evaluate

        return evaluate(
            config,
            manifest,
            policy,
            tasks=tasks,
            samples=samples,
            progress=lambda done: bar.update(row, completed=done),
        )


def _show(model: str, scores: dict[str, Any], ks: list[int]) -> None:
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
