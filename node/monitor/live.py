"""Terminal views of a running node: a live panel, plain lines, and startup stages."""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import ExitStack

from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from node.monitor.output import display_on, say_if_long
from node.monitor.record import (
    RoundRecord,
    Sink,
    Terminal,
    bars_for,
    externals,
    foreign_peers,
    group_costs,
    number,
    one_line,
    percent,
    refusals,
    share,
    size,
    sparkline,
    split,
)
from swarm.common.counters import UNREPEATED
from swarm.common.util import counted, duration

log = logging.getLogger(__name__)

BAR = 24  # characters
ROUNDS = 32  # averaged for the estimate: includes an evaluation in ten, excludes old rounds


class Remaining:
    """An estimate of the time to the last round; ``rounds`` is 0 for no limit."""

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seconds: deque[float] = deque(maxlen=ROUNDS)

    def after(self, record: RoundRecord) -> str:
        """Return a text such as "about 12 min left"; empty without a limit and at its end."""
        if "total" in record.seconds:
            self._seconds.append(record.seconds["total"])
        remaining = self._rounds - record.round
        if remaining <= 0 or not self._seconds:
            return ""
        return f"about {duration(remaining * sum(self._seconds) / len(self._seconds))} left"


HISTORY = 4096
SPARK_WIDTH = 48
PANEL_WIDTH = 88


class LivePanel:
    """A panel with the newest record and the rewards since the process started.

    ``rounds`` is 0 for no limit.
    """

    def __init__(self, title: str, rounds: int, console: Terminal) -> None:
        self._title = title
        self._rounds = rounds
        self._remaining = Remaining(rounds)
        self._rewards: deque[float] = deque(maxlen=HISTORY)
        self._last_eval: float | None = None
        self._width = min(console.width, PANEL_WIDTH)
        self._bars = bars_for(console)
        self._figures: RenderableType = Spinner("dots", "starting; the first round is running")
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4)
        self._stack = ExitStack()
        self._stack.enter_context(display_on(console))
        self._live.start()

    def write(self, record: RoundRecord) -> None:
        if record.reward_local is not None:
            self._rewards.append(record.reward_local)
        if record.reward_eval is not None:
            self._last_eval = record.reward_eval
        self._figures = self._table(record)

    def close(self) -> None:
        """Leave the last state on the screen and restore the terminal."""
        self._live.stop()
        self._stack.close()

    def _panel(self) -> Panel:
        return Panel(self._figures, title=Text(self._title), border_style="cyan", width=self._width)

    def _table(self, record: RoundRecord) -> Table:
        table = Table.grid(Column(style="dim"), Column(), padding=(0, 2))
        total = f" of {self._rounds}" if self._rounds else ""
        time_left = self._remaining.after(record)
        step = f"policy step {record.policy_step}"
        rows: dict[str, RenderableType] = {
            "round": ", ".join(filter(None, (f"{record.round}{total}", time_left, step))),
            "reward": Text.assemble(
                "local ",
                (share(record.reward_local), "bold"),
                f", peers {share(record.reward_external)}, held-out {share(self._last_eval)}",
            ),
            "": sparkline(list(self._rewards), SPARK_WIDTH, self._bars),
            "informative": f"{percent(record.informative_local)} of local groups",
            "peer groups": f"{externals(record)}, {record.pool_groups} in the replay buffer",
            "cost": group_costs(record),
            "tokens": f"{number(record.tokens_per_s, ',.0f')} per second, "
            f"{number(record.mean_length, '.1f')} per completion, "
            f"{percent(record.truncated)} truncated",
            "time": f"{record.seconds.get('total', 0.0):.2f} s: {split(record.seconds)}",
            "network": f"{counted(record.peers, 'peer')}{foreign_peers(record)}, "
            f"in {size(record.bytes_in)}, out {size(record.bytes_out)}",
            "refused": refusals(record.refused),
            "memory": f"{record.rss_mb:,.0f} MB",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        return table


class LoggedLines(Sink):
    """A sink that logs one line per round, for when standard output is the log."""

    def write(self, record: RoundRecord) -> None:
        log.info("%s", one_line(record), extra=UNREPEATED)


class PlainLines(Sink):
    """A sink that prints one line per round; ``rounds`` is 0 for no limit."""

    def __init__(self, rounds: int, console: Terminal) -> None:
        self._console = console
        self._remaining = Remaining(rounds)
        self._late = say_if_long("the first round has begun; swarm-node logs -f shows its phases")

    def write(self, record: RoundRecord) -> None:
        self._late.cancel()
        parts = [one_line(record), self._remaining.after(record)]
        line = " | ".join(part for part in parts if part)
        self._console.print(line, highlight=False, soft_wrap=True)


class Stages:
    """A display of the startup stage until :meth:`close`; ``quiet`` only logs it.

    Without a terminal, a line names each stage that takes long.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        console = Terminal()
        self._spinner = Spinner("dots", "starting")
        self._live: Live | None = None
        self._late: threading.Timer | None = None
        self._stack = ExitStack()
        if console.is_terminal and not quiet:
            self._live = Live(self._spinner, console=console, transient=True)
            self._live.start()
            self._stack.enter_context(display_on(console))
        elif not quiet:
            log.info("starting the node")
            self._late = say_if_long("starting the node")

    def begin(self, stage: str) -> None:
        """Show and log the stage that starts now."""
        log.info("start: %s", stage)
        if self._live:
            self._spinner.update(text=f"starting: {stage}")
            self._live.refresh()
        if self._late:
            self._late.cancel()
            self._late = say_if_long(f"starting: {stage}")

    def progress(self, done: float, what: str) -> None:
        """Show how much of a stage's time, 0 to 1, has passed, and what it is at."""
        if self._live:
            bar = ("━" * round(BAR * done)).ljust(BAR, "╌")
            self._spinner.update(text=f"{bar} {percent(done)} of the time: {what}")
            self._live.refresh()

    def close(self) -> None:
        """Release the terminal; may be called twice."""
        if self._live:
            self._live.stop()
        if self._late:
            self._late.cancel()
        self._stack.close()
