"""What a node is busy with while it starts: a spinner on a terminal, and lines in the log."""

from __future__ import annotations

import logging

from rich.live import Live
from rich.spinner import Spinner

from node.monitor.terminal import Terminal

log = logging.getLogger(__name__)


class Stages:
    """Shows one stage after the other until :meth:`close`.

    Args:
        quiet: standard output is not to be drawn on, whatever it is.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        console = Terminal()
        self._spinner = Spinner("dots", "starting")
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            self._live = Live(self._spinner, console=console, transient=True)
            self._live.start()

    def begin(self, stage: str) -> None:
        """Say what is done from now on."""
        log.info("start: %s", stage)
        if self._live:
            self._spinner.update(text=f"starting: {stage}")
            self._live.refresh()

    def close(self) -> None:
        """Give the terminal back; harmless when called twice."""
        if self._live:
            self._live.stop()
