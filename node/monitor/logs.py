"""Where messages go: all of them to node.log, warnings to the terminal as well."""

from __future__ import annotations

import logging
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rich.console import Console
from rich.logging import RichHandler

OURS = ("node", "swarm", "protocol")
FILE_BYTES = 10_000_000
FILES = 3


def start_logging(path: Path, level: str, *, debug: bool = False) -> None:
    """Send messages of this program at ``level`` and warnings of its libraries to ``path``.

    The file is bounded: three of 10 MB at most. With ``debug`` the terminal shows everything
    that goes to the file, with stack traces.
    """
    file = RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
    file.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    terminal = RichHandler(
        logging.DEBUG if debug else logging.WARNING,
        Console(stderr=True),
        show_path=False,
        rich_tracebacks=debug,
    )
    if not debug:
        terminal.setFormatter(_MessageOnly())
    root = logging.getLogger()
    root.handlers[:] = [file, terminal]
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else level.upper())


class _MessageOnly(logging.Formatter):
    """Leaves stack traces to the file."""

    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage()
