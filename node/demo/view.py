"""The swarm in one terminal while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from node.demo.summary import known, mean
from node.monitor.record import RoundRecord, bars_for, percent, share, sparkline

POINTS = 16
RECENT = 10
"""Rounds that a figure is the mean of."""
AROUND = 11
"""Lines of a terminal that are no node's: how to join and look, the table's head, progress."""
LINE_SECONDS = 5.0
"""Between two lines where there is no terminal to draw in."""

Records = Mapping[str, Sequence[RoundRecord]]
"""Of the last rounds, by node name."""


class SwarmView:
    """Draws what the nodes' records say; knows nothing of processes.

    Args:
        rounds: of each node; 0 when there is no end.
    """

    def __init__(self, rounds: int, nodes: int, console: Console) -> None:
        self._rounds = rounds
        self._console = console
        self._progress = Progress(
            TextColumn("rounds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        )
        self._task = self._progress.add_task("rounds", total=rounds * nodes or None)

    @contextmanager
    def shown(self) -> Iterator[Callable[[Records], None]]:
        """Give out what shows records: a table that redraws itself, or a line now and then."""
        if not self._console.is_terminal:
            yield Paced(lambda records: self._console.print(self.line(records), soft_wrap=True))
            return
        with Live(console=self._console, refresh_per_second=4, transient=True) as live:
            yield lambda records: live.update(self.render(records), refresh=True)

    def render(self, records: Records) -> RenderableType:
        """The table for the records so far; as many nodes as leave what was said before it in
        sight."""
        self._progress.update(self._task, completed=sum(r[-1].round for r in records.values() if r))
        table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        table.add_column("node")
        for column in ("round", "reward", "external", "held-out", "useful", "taken"):
            table.add_column(column, justify="right", no_wrap=True)
        table.add_column("reward by round", no_wrap=True)
        room = max(1, self._console.height - AROUND)
        for name, rows in list(records.items())[:room]:
            table.add_row(name, *(self._cells(rows) if rows else ["starting"]))
        if len(records) > room:
            table.add_row(f"{len(records) - room} more")
        return Group(table, self._progress)

    def line(self, records: Records) -> str:
        """The swarm in one line."""
        begun = [rows for rows in records.values() if rows]
        at_work = f"{len(begun)} of {len(records)} at work"
        if not begun:
            return f"starting | {at_work}"
        done = sorted(rows[-1].round for rows in begun)
        of = f" of {self._rounds}" if self._rounds else ""
        recent = [record for rows in begun for record in rows[-RECENT:]]
        evaluated = [record for rows in begun if (record := _last_evaluated(rows))]
        return " | ".join(
            [
                f"rounds {done[0]} to {done[-1]}{of}",
                f"reward {share(mean(known(recent, 'reward_own')))}",
                f"external {share(mean(known(recent, 'reward_external')))} ({_taken(recent)})",
                f"held-out {share(mean(known(evaluated, 'reward_eval')))}",
                at_work,
            ]
        )

    def _cells(self, rows: Sequence[RoundRecord]) -> list[str]:
        recent, evaluated = rows[-RECENT:], _last_evaluated(rows)
        informative = mean(known(recent, "informative_own"))
        return [
            str(rows[-1].round),
            share(mean(known(recent, "reward_own"))),
            share(mean(known(recent, "reward_external"))),
            share(evaluated.reward_eval if evaluated else None),
            percent(informative),
            _taken(recent),
            sparkline(known(rows, "reward_own"), POINTS, bars_for(self._console)),
        ]


class Paced:
    """Hands on what comes, at once and then no more often than every :data:`LINE_SECONDS`."""

    def __init__(
        self, show: Callable[[Records], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._show = show
        self._now = now
        self._shown = float("-inf")

    def __call__(self, records: Records) -> None:
        """Show these, unless others were shown a moment ago."""
        if self._now() - self._shown >= LINE_SECONDS:
            self._shown = self._now()
            self._show(records)


def _last_evaluated(rows: Sequence[RoundRecord]) -> RoundRecord | None:
    return next((record for record in reversed(rows) if record.reward_eval is not None), None)


def _taken(recent: Sequence[RoundRecord]) -> str:
    taken, wanted = (
        fmean(getattr(r, name) for r in recent) for name in ("groups_external", "external_wanted")
    )
    return f"{taken:.1f} of {wanted:.0f}"
