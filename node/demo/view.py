"""The swarm in one terminal while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.demo.summary import mean
from node.monitor.sparkline import sparkline

POINTS = 16


class SwarmView:
    """TaskIndexes what the nodes' records say; knows nothing of processes."""

    def __init__(self, rounds: int, nodes: int) -> None:
        self._progress = Progress(
            TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rounds", total=rounds * nodes)

    def render(self, records: Mapping[str, Sequence[dict[str, Any]]]) -> RenderableType:
        """The table for the records so far, by node name."""
        self._progress.update(
            self._task, completed=sum(r[-1]["round"] for r in records.values() if r)
        )
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("node")
        for column in ("round", "reward", "external", "held-out", "useful", "taken"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("reward by round", no_wrap=True)
        for name, rows in records.items():
            table.add_row(name, *(_cells(rows) if rows else ["starting"]))
        return Group(table, self._progress)


def _cells(rows: Sequence[dict[str, Any]]) -> list[str]:
    recent = rows[-10:]
    external = [r["reward_external"] for r in recent if r["reward_external"] is not None]
    evaluations = [r["reward_eval"] for r in rows if r["reward_eval"] is not None]
    taken = sum(r["groups_external"] for r in recent)
    wanted = sum(r["external_wanted"] for r in recent)
    return [
        str(rows[-1]["round"]),
        f"{mean([r['reward_own'] for r in recent]):.3f}",
        f"{mean(external):.3f}" if external else "–",
        f"{evaluations[-1]:.3f}" if evaluations else "–",
        f"{mean([r['informative_own'] for r in recent]):.0%}",
        f"{taken / len(recent):.1f} of {wanted / len(recent):.0f}",
        sparkline([r["reward_own"] for r in rows], POINTS),
    ]
