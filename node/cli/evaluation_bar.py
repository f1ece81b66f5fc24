"""An evaluation that shows how far it is."""

from __future__ import annotations

from typing import Any


def evaluated(
    config: Any,
    manifest: Any,
    policy: Any,
    *,
    tasks: int,
    samples: int,
    seed: int | None = None,
    name: str = "tasks",
) -> Any:
    """:func:`node.evaluation.model_eval.evaluate` with a bar, called ``name``, on a terminal."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from node.evaluation.model_eval import evaluate
    from node.monitor.terminal import Terminal

    console = Terminal(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        row = bar.add_task(name, total=tasks)
        return evaluate(
            config,
            manifest,
            policy,
            tasks=tasks,
            samples=samples,
            seed=seed,
            progress=lambda done: bar.update(row, completed=done),
        )
