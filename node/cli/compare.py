"""``swarm-node compare``: two models on the same held-out tasks."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from node.cli.checkpoint_options import BestOption
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
from node.cli.evaluation_bar import evaluated
from node.cli.named_model import loading, model_of, node_named
from node.monitor.terminal import printable

SEED = 0
"""Of what both sample, so that the same models compare alike each time."""

PROMPT_CHARACTERS = 60


def command(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A",
            help="A node (config or folder), or a model (folder, hub id or shipped).",
        ),
    ],
    second: Annotated[str, typer.Argument(metavar="B", help="What it is compared with.")],
    tasks: Annotated[int, typer.Option("--tasks", min=2, help="Held-out tasks.")] = 64,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Completions a task.")] = 8,
    show: Annotated[
        int, typer.Option("--show", min=0, help="Tasks on which they differ most to print.")
    ] = 5,
    best: BestOption = False,
    config: ConfigOption = None,
    assignments: SetOption = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say which of two models is better, by family, and where they differ.

    Both answer the same held-out tasks, those of the node named with --config, else of the first of
    the two that is a node. Of a node the newest checkpoint is taken, or with --best its best.
    """
    sides = {name: node_named(name) for name in (first, second)}
    judged = _whose_tasks(config, sides, overrides_of(assignments))
    with loading():
        from node.evaluation.comparison import Comparison
        from node.evaluation.model_eval import pinned_manifest

    manifest = pinned_manifest(judged.folder)
    results = []
    for name in (first, second):
        side = sides[name]
        policy, _ = model_of(side, best=best) if side else model_of(judged, model=name)
        results.append(
            evaluated(
                judged.config,
                manifest,
                policy,
                tasks=tasks,
                samples=samples,
                seed=SEED,
                name=printable(name),
            )
        )
    comparison = Comparison.of(*results)
    if json:
        print_json(_plain(comparison, first, second, samples))
        return
    _show(comparison, first, second, show)


def _whose_tasks(config: Any, sides: dict[str, Node | None], overrides: dict[str, Any]) -> Node:
    """The node whose swarm's tasks both are tried on."""
    if config is None:
        found = next((side for side in sides.values() if side), None)
        config = found.path if found else None
    return open_node(config, overrides)


def _plain(comparison: Any, first: str, second: str, samples: int) -> dict[str, Any]:
    return {
        "first": first,
        "second": second,
        "samples": samples,
        **_figures(comparison.all),
        "families": {env: _figures(part) for env, part in comparison.families.items()},
        "disputed": [
            {
                "env": row.task.env,
                "level": row.task.level,
                "seed": row.task.seed,
                "prompt": row.prompt,
                "first": row.first,
                "second": row.second,
            }
            for row in comparison.disputed
        ],
    }


def _figures(part: Any) -> dict[str, Any]:
    return {
        "tasks": part.tasks,
        "reward_first": part.first,
        "reward_second": part.second,
        "gain": part.gain.mean,
        "margin": part.gain.margin,
        "beyond_noise": part.gain.beyond_noise,
    }


def _show(comparison: Any, first: str, second: str, show: int) -> None:
    from rich.table import Table

    from node.monitor.terminal import Terminal

    terminal = Terminal()
    table = Table(title=f"A {first}, B {second}", title_justify="left")
    table.add_column("family")
    for column in ("tasks", "A", "B", "B − A", "95 %"):
        table.add_column(column, justify="right")
    for name, part in {**comparison.families, "all": comparison.all}.items():
        gain = part.gain
        margin = "" if gain.margin is None else f"± {gain.margin:.3f}"
        figures = f"{part.first:.3f}", f"{part.second:.3f}", f"{gain.mean:+.3f}", margin
        table.add_row(name, str(part.tasks), *figures)
    terminal.print(table)
    terminal.print(_verdict(comparison.all.gain))
    if comparison.disputed[:show]:
        terminal.print(_disputed(comparison.disputed[:show], len(comparison.disputed)))


def _verdict(gain: Any) -> str:
    if not gain.beyond_noise:
        return "no difference beyond noise; more --tasks would tell smaller ones"
    return f"{'B' if gain.mean > 0 else 'A'} is better on tasks like these"


def _disputed(rows: Any, count: int) -> Any:
    from rich.table import Table

    table = Table(title=f"they differ on {count} tasks, most on", title_justify="left")
    table.add_column("family")
    table.add_column("task", overflow="fold")
    for column in ("A", "B"):
        table.add_column(column, justify="right")
    for row in rows:
        prompt = printable(" ".join((row.prompt or "").split()), PROMPT_CHARACTERS)
        table.add_row(row.task.env, prompt, f"{row.first:.3f}", f"{row.second:.3f}")
    return table
