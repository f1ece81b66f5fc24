"""The swarm in one terminal while it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.demo.summary import known, mean
from node.monitor.record import RoundRecord
from node.monitor.sparkline import sparkline
from node.monitor.words import percent, share

POINTS = 16


class SwarmView:
    """TaskIndexes what the nodes' records say; knows nothing of processes."""

    def __init__(self, rounds: int, nodes: int) -> None:
        self._progress = Progress(
            TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rounds", total=rounds * nodes)

    def render(self, records: Mapping[str, Sequence[RoundRecord]]) -> RenderableType:
        """The table for the records so far, by node name."""
        self._progress.update(self._task, completed=sum(r[-1].round for r in records.values() if r))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("node")
        for column in ("round", "reward", "external", "held-out", "useful", "taken"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("reward by round", no_wrap=True)
        for name, rows in records.items():
            table.add_row(name, *(_cells(rows) if rows else ["starting"]))
        return Group(table, self._progress)


def _cells(rows: Sequence[RoundRecord]) -> list[str]:
    recent = rows[-10:]
    evaluations = known(rows, "reward_eval")
    taken = sum(r.groups_external for r in recent)
    wanted = sum(r.external_wanted for r in recent)
    return [
        str(rows[-1].round),
        share(mean(known(recent, "reward_own"))),
        share(mean(known(recent, "reward_external"))),
        share(evaluations[-1] if evaluations else None),
        percent(mean(known(recent, "informative_own"))),
        f"{taken / len(recent):.1f} of {wanted / len(recent):.0f}",
        sparkline(known(rows, "reward_own"), POINTS),
    ]
