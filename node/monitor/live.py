"""Terminal views of a running node: a live panel, plain lines, and startup stages."""

from __future__ import annotations

import logging
import os
import select
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from types import FrameType
from typing import Any

from rich.console import RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from node.monitor.groups import LastRollouts, in_lines
from node.monitor.output import display_on, say_if_long
from node.monitor.record import (
    RoundRecord,
    Sink,
    Terminal,
    bars_for,
    externals,
    number,
    one_line,
    percent,
    refusals,
    share,
    size,
    sparkline,
    split,
    strangers,
)
from swarm.common.counters import UNREPEATED
from swarm.common.util import counted, duration

BAR = 24  # characters
LOOK_SECONDS = 0.25  # interval of checks for the foreground and for closing
LEAVING = ("SIGTSTP", "SIGQUIT")  # Ctrl-Z and Ctrl-\: the shell takes its terminal back
# Indices in the result of ``termios.tcgetattr``: the flags for line editing and echo, and the
# conditions that end a read.
LOCAL_MODES, CHARACTERS = 3, 6
ESCAPE = b"\x1b"


class Keys:
    """A reader of single key presses from a terminal on standard input.

    It reads nothing in the background or without ``termios`` (Windows), and restores the terminal
    on close and while stopped (Ctrl-Z). ``pressed`` gets a character, on another thread; ``cursor``
    shows (True) or hides the cursor around a stop.
    """

    def __init__(self, pressed: Callable[[str], None], cursor: Callable[[bool], object]) -> None:
        self._pressed = pressed
        self._cursor = cursor
        self._lock = threading.RLock()
        self._before: list[Any] | None = None
        self._handlers: dict[signal.Signals, Any] = {}
        self._terminal = _terminal()
        self.reads = self._terminal is not None
        self._closed = threading.Event()
        self._away = False
        self._thread = threading.Thread(target=self._watch, name="keys", daemon=True)

    def start(self) -> None:
        """Start reading if there is a terminal; main thread only (signal handlers)."""
        if self._terminal is None:
            return
        for each in (getattr(signal, name) for name in LEAVING):
            # An ignored signal stays ignored.
            if signal.getsignal(each) is signal.SIG_DFL:
                self._handlers[each] = signal.signal(each, self._leave)
        self._thread.start()

    def close(self) -> None:
        """Restore the terminal; may be called twice, or before the start."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()
        self._give_back()
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _watch(self) -> None:
        # If these are blocked, terminal access fails with an error instead of stopping the process.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN, signal.SIGTTOU})
        while not self._closed.is_set():
            for key in self._read():
                self._pressed(key)

    def _read(self) -> str:
        """Wait briefly for key presses; keys that send several characters are dropped."""
        assert self._terminal is not None
        import termios

        # An error means that the terminal was closed or lost before the read.
        with suppress(OSError, termios.error):
            if self._take():
                select.select([self._terminal], [], [], LOOK_SECONDS)
                with self._lock:
                    pressed = os.read(self._terminal, 64) if self._take() else b""
                return "" if pressed.startswith(ESCAPE) else pressed.decode("ascii", "replace")
        self._closed.wait(LOOK_SECONDS)
        return ""

    def _take(self) -> bool:
        """Switch the terminal to single keys; return whether this process may read it."""
        import termios

        assert self._terminal is not None
        with self._lock:
            if self._away or not self._in_front():
                return False
            modes = termios.tcgetattr(self._terminal)
            if modes[LOCAL_MODES] & termios.ICANON:
                self._before = modes
                by_key, characters = [*modes], [*modes[CHARACTERS]]
                by_key[LOCAL_MODES] &= ~(termios.ICANON | termios.ECHO)
                characters[termios.VMIN], characters[termios.VTIME] = 0, 0  # a read never waits
                by_key[CHARACTERS] = characters
                termios.tcsetattr(self._terminal, termios.TCSANOW, by_key)
            return True

    def _give_back(self) -> None:
        if self._terminal is None:
            return
        import termios

        with self._lock:
            before, self._before = self._before, None
            if before is not None and self._in_front():
                termios.tcsetattr(self._terminal, termios.TCSANOW, before)

    def _in_front(self) -> bool:
        assert self._terminal is not None
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False  # closed, or not the terminal of this process's session

    def _leave(self, number: int, frame: FrameType | None) -> None:
        """Restore the terminal, then let the signal act as usual."""
        self._away = True
        self._give_back()
        self._cursor(True)
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        # The process was continued.
        signal.signal(number, self._leave)
        self._cursor(False)
        self._away = False


def _terminal() -> int | None:
    if find_spec("termios") is None:
        return None
    try:
        number = sys.stdin.fileno()
    except (AttributeError, OSError, ValueError):
        return None  # no standard input, or a replacement without a descriptor
    return number if os.isatty(number) else None


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
        left = self._rounds - record.round
        if left <= 0 or not self._seconds:
            return ""
        return f"about {duration(left * sum(self._seconds) / len(self._seconds))} left"


log = logging.getLogger(__name__)

HISTORY = 4096
SPARK_WIDTH = 48
PANEL_WIDTH = 88
AROUND = 4  # columns of the panel's border; its lines are fewer


class LivePanel:
    """A panel with the newest record and the rewards since the process started.

    On a terminal, the key r switches between figures and rollouts. ``rounds`` is 0 for no limit.
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
        self._figures: RenderableType = Spinner("dots", "starting; the first round is running")
        self._turned = False
        self._keys = Keys(self._press, console.show_cursor)
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4)
        self._stack = ExitStack()
        self._stack.enter_context(display_on(console))
        self._live.start()
        self._keys.start()

    def write(self, record: RoundRecord) -> None:
        if record.reward_own is not None:
            self._rewards.append(record.reward_own)
        if record.reward_eval is not None:
            self._last_eval = record.reward_eval
        self._figures = self._table(record)

    def close(self) -> None:
        """Leave the last state on the screen and restore the terminal."""
        try:
            self._keys.close()
        finally:
            self._live.stop()
            self._stack.close()

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
        table = Table.grid(Column(style="dim"), Column(), padding=(0, 2))
        of = f" of {self._rounds}" if self._rounds else ""
        left = self._remaining.after(record)
        step = f"policy step {record.policy_step}"
        total = record.seconds.get("total", 0.0)
        rows: dict[str, RenderableType] = {
            "round": ", ".join(filter(None, (f"{record.round}{of}", left, step))),
            "reward": Text.assemble(
                "local ",
                (share(record.reward_own), "bold"),
                f", peers {share(record.reward_external)}, held-out {share(self._last_eval)}",
            ),
            "": sparkline(list(self._rewards), SPARK_WIDTH, self._bars),
            "informative": f"{percent(record.informative_own)} of local groups",
            "peer groups": f"{externals(record)}, {record.pool_groups} in the replay buffer",
            "tokens": f"{number(record.tokens_per_s, ',.0f')} per second, "
            f"{number(record.mean_length, '.1f')} per completion, "
            f"{percent(record.truncated)} truncated",
            "time": f"{total:.2f} s: {split(record.seconds)}",
            "network": f"{counted(record.peers, 'peer')}{strangers(record)}, "
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

    def write(self, record: RoundRecord) -> None:
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
