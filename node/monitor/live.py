"""A node in one terminal: a panel that redraws itself, or a line a round where it cannot."""

from __future__ import annotations

import logging
from collections import deque

from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from node.monitor.keys import Keys
from node.monitor.record import RoundRecord
from node.monitor.remaining import Remaining
from node.monitor.rollout_view import in_lines
from node.monitor.rollouts import LastRollouts
from node.monitor.sparkline import bars_for, sparkline
from node.monitor.terminal import Terminal
from node.monitor.words import (
    externals,
    number,
    one_line,
    percent,
    refusals,
    share,
    size,
    split,
    strangers,
)
from swarm.common.counters import UNREPEATED
from swarm.common.util import counted

log = logging.getLogger(__name__)

HISTORY = 4096
SPARK_WIDTH = 48
PANEL_WIDTH = 88
AROUND = 4
"""Columns that a panel takes for its border; lines are fewer."""


class LivePanel:
    """Shows the newest record, and the rewards since the process started as a row of bars.

    Where standard input is a terminal, the key r turns to the last rollouts and back.

    Args:
        title: of the panel, such as the node's name.
        rounds: rounds to be done; 0 when there is no end.
        rollouts: the last ones.
    """

    def __init__(self, title: str, rounds: int, rollouts: LastRollouts, console: Terminal) -> None:
        self._title = title
        self._rounds = rounds
        self._rollouts = rollouts
        self._remaining = Remaining(rounds)
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._last_eval: float | None = None
        self._console = console
        self._width = min(console.width, PANEL_WIDTH)
        self._bars = bars_for(console)
        self._figures: RenderableType = Spinner("dots", "starting; the first round is on its way")
        self._turned = False
        self._keys = Keys(self._press, console.show_cursor)
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4)
        self._live.start()
        self._keys.start()

    def write(self, record: RoundRecord) -> None:
        """Redraw."""
        if record.reward_own is not None:
            self._rewards.append(record.reward_own)
        if record.reward_eval is not None:
            self._last_eval = record.reward_eval
        self._figures = self._table(record)

    def close(self) -> None:
        """Leave the last state on the screen, and the terminal as it was."""
        try:
            self._keys.close()
        finally:
            self._live.stop()

    def _press(self, key: str) -> None:
        if key in "rR":
            self._turned = not self._turned
            self._live.refresh()

    def _panel(self) -> Panel:
        content, other = self._figures, "the last rollouts"
        if self._turned:
            height = self._console.height - AROUND
            content = in_lines(self._rollouts.all(), self._width - AROUND, height)
            other = "the figures"
        return Panel(
            content,
            title=Text(self._title),
            subtitle=Text(f"r: {other}") if self._keys.reads else None,
            border_style="cyan",
            width=self._width,
        )

    def _table(self, record: RoundRecord) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        of = f" of {self._rounds}" if self._rounds else ""
        left = self._remaining.after(record)
        total = record.seconds.get("total", 0.0)
        rows: dict[str, RenderableType] = {
            "round": ", ".join(
                part
                for part in (f"{record.round}{of}", left, f"policy step {record.policy_step}")
                if part
            ),
            "reward": Text.assemble(
                "own ",
                (share(record.reward_own), "bold"),
                f", external {share(record.reward_external)}, held-out {share(self._last_eval)}",
            ),
            "": sparkline(list(self._rewards), SPARK_WIDTH, self._bars),
            "informative": f"{percent(record.informative_own)} of own groups",
            "external": f"{externals(record)} filled, {record.pool_groups} in the pool",
            "tokens": f"{number(record.tokens_per_s, ',.0f')} a second, "
            f"{number(record.mean_length, '.1f')} a completion, {percent(record.truncated)} cut",
            "time": f"{total:.2f} s: {split(record.seconds)}",
            "network": f"{counted(record.peers, 'peer')}{strangers(record)}, "
            f"in {size(record.bytes_in)}, out {size(record.bytes_out)}",
            "refused": refusals(record.refused),
            "memory": f"{record.rss_mb:,.0f} MB",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table


class LoggedLines:
    """Logs one line a round, where standard output is the log."""

    def write(self, record: RoundRecord) -> None:
        """Log one line."""
        log.info("%s", one_line(record), extra=UNREPEATED)

    def close(self) -> None:
        """Nothing is held."""


class PlainLines:
    """Prints one line a round, for logs and pipes.

    Args:
        rounds: rounds to be done; 0 when there is no end.
    """

    def __init__(self, rounds: int, console: Terminal) -> None:
        self._console = console
        self._remaining = Remaining(rounds)

    def write(self, record: RoundRecord) -> None:
        """Print one line."""
        parts = [one_line(record), self._remaining.after(record)]
        line = " | ".join(part for part in parts if part)
        self._console.print(line, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""
