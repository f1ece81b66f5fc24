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

from node.monitor.record import RoundRecord
from node.monitor.sparkline import sparkline
from node.monitor.terminal import Terminal
from node.monitor.words import (
    externals,
    number,
    one_line,
    peers,
    percent,
    refusals,
    share,
    size,
    split,
)

log = logging.getLogger(__name__)

HISTORY = 4096
SPARK_WIDTH = 48
PANEL_WIDTH = 88


class LivePanel:
    """Shows the newest record, and the rewards since the process started as a row of bars.

    Args:
        title: of the panel, such as the node's name.
        rounds: rounds to be done; 0 when there is no end.
    """

    def __init__(self, title: str, rounds: int, console: Terminal) -> None:
        self._title = title
        self._rounds = rounds
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._last_eval: float | None = None
        self._width = min(console.width, PANEL_WIDTH)
        waiting = Spinner("dots", "starting; the first round is on its way")
        self._live = Live(self._panel(waiting), console=console, refresh_per_second=4)
        self._live.start()

    def write(self, record: RoundRecord) -> None:
        """Redraw."""
        if record.reward_own is not None:
            self._rewards.append(record.reward_own)
        if record.reward_eval is not None:
            self._last_eval = record.reward_eval
        self._live.update(self._panel(self._table(record)))

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def _panel(self, content: RenderableType) -> Panel:
        return Panel(content, title=Text(self._title), border_style="cyan", width=self._width)

    def _table(self, record: RoundRecord) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim")
        table.add_column()
        of = f" of {self._rounds}" if self._rounds else ""
        total = record.seconds.get("total", 0.0)
        rows: dict[str, RenderableType] = {
            "round": f"{record.round}{of}, policy step {record.policy_step}",
            "reward": Text.assemble(
                "own ",
                (share(record.reward_own), "bold"),
                f", external {share(record.reward_external)}, held-out {share(self._last_eval)}",
            ),
            "": sparkline(list(self._rewards), SPARK_WIDTH),
            "informative": f"{percent(record.informative_own)} of own groups",
            "external": f"{externals(record)} filled, {record.pool_groups} in the pool",
            "tokens": f"{number(record.tokens_per_s, ',.0f')} a second, "
            f"{number(record.mean_length, '.1f')} a completion, {percent(record.truncated)} cut",
            "time": f"{total:.2f} s: {split(record.seconds)}",
            "network": f"{peers(record)} peers, in {size(record.bytes_in)}, "
            f"out {size(record.bytes_out)}",
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
        log.info("%s", one_line(record))

    def close(self) -> None:
        """Nothing is held."""


class PlainLines:
    """Prints one line a round, for logs and pipes."""

    def __init__(self, console: Terminal) -> None:
        self._console = console

    def write(self, record: RoundRecord) -> None:
        """Print one line."""
        self._console.print(one_line(record), highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing is held."""
