"""Where messages go: all of them to node.log, our own warnings to the terminal as well."""

from __future__ import annotations

import logging
import os
import sys
from copy import copy
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rich.logging import RichHandler

from node.errors import NodeError
from node.monitor.printable import PrintableFormatter, printable, say
from node.monitor.terminal import Terminal
from swarm.common.clock import Clock, SystemClock
from swarm.common.counters import UNREPEATED, Repeats
from swarm.common.util import make_private
from swarm.journal import JournalError

log = logging.getLogger(__name__)

STDOUT, STDERR = 1, 2
OURS = ("node", "swarm", "protocol")
FILE_BYTES = 10_000_000
FILES = 3
ERROR = "error: "
"""What the last line of a command that fails begins with."""
_LOGGED = f" ERROR {__name__}: "
_SAID = "said"
SAID = {_SAID: True, **UNREPEATED}
"""What a message has as ``extra`` that is on the terminal already."""


def start_logging(
    path: Path, level: str, *, debug: bool = False, clock: Clock | None = None
) -> None:
    """Send messages of this program at ``level`` and warnings of its libraries to ``path``.

    The file is bounded: three of 10 MB at most. What repeats is told once in ten minutes
    (:mod:`swarm.common.counters`), and an error that names its remedy without a stack trace. With
    ``debug`` the terminal shows everything that goes to the file, with all stack traces. Where
    standard error is that very file, each message stands in it once.

    Args:
        clock: the system's when None.
    """
    file = _LogFile(path, maxBytes=FILE_BYTES, backupCount=FILES - 1, encoding="utf-8")
    line = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    file.setFormatter(PrintableFormatter(line) if debug else _RemediesFormatter(line))
    handlers = [file] if goes_to(STDERR, path) else [file, _terminal(debug)]
    repeats = Repeats(clock or SystemClock())
    for handler in handlers:
        handler.addFilter(repeats)
    root = logging.getLogger()
    root.handlers[:] = handlers
    root.setLevel(logging.WARNING)
    for name in OURS:
        logging.getLogger(name).setLevel(logging.DEBUG if debug else level.upper())


def goes_to(descriptor: int, path: Path) -> bool:
    """Whether what is written to a descriptor ends up in a file."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False  # closed, or there is no such file


def log_error(text: str) -> bool:
    """Put the error that ends this command into the log, where one is open.

    Returns:
        Whether standard error is that very file, so that it stands there now.
    """
    files = [each for each in logging.getLogger().handlers if isinstance(each, _LogFile)]
    if files:
        log.error("%s", text, extra=SAID)
    return any(goes_to(STDERR, Path(each.baseFilename)) for each in files)


def error_in(line: str) -> str | None:
    """The error that ended a command, of a line of what it printed and logged; None if none."""
    if line.startswith(ERROR):
        return line
    return f"{ERROR}{line.partition(_LOGGED)[2]}" if _LOGGED in line else None


def earlier_logs(path: Path) -> list[Path]:
    """What a full log file was kept as, the newest first; not all of them need to exist."""
    return [path.with_name(f"{path.name}.{number}") for number in range(1, FILES)]


def _terminal(debug: bool) -> logging.Handler:
    """Rich where there is a terminal, else plain lines that nothing wraps."""
    console = Terminal(stderr=True)
    handler: logging.Handler = logging.StreamHandler()
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
    handler.setLevel(logging.DEBUG if debug else logging.WARNING)
    handler.setFormatter(PrintableFormatter("%(message)s") if debug else _MessageOnly())
    handler.addFilter(_is_new)
    if not debug:
        handler.addFilter(_is_ours)
    return handler


class _LogFile(RotatingFileHandler):
    """Says once on the terminal that it cannot write, in place of a trace a message.

    Standard output and error that go to the file go to the new one once it is full.
    """

    _failed = False

    def _open(self) -> TextIOWrapper:
        make_private(Path(self.baseFilename))
        return super()._open()

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        """Called while nobody else writes a message."""
        path = Path(self.baseFilename)
        outputs = [each for each in (STDOUT, STDERR) if goes_to(each, path)]
        super().doRollover()
        assert self.stream is not None, "the next file is opened at once"
        for descriptor in outputs:
            os.dup2(self.stream.fileno(), descriptor)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Called within the handling of the error."""
        if not self._failed:
            self._failed = True
            error = sys.exc_info()[1]
            say(
                f"the log failed: {self.baseFilename} cannot be written: {error}. Free some space "
                "there; what it cannot take is told no more",
                err=True,
            )


class _MessageOnly(logging.Formatter):
    """One line; stack traces are left to the file."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(" ".join(record.getMessage().split()))


class _RemediesFormatter(PrintableFormatter):
    """Puts an error that says what to do about it into the line, in place of a stack trace."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NodeError | JournalError):
            record = copy(record)
            text = record.getMessage()
            record.msg = text if str(error) in text else f"{text}: {error}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return super().format(record)


def _is_ours(record: logging.LogRecord) -> bool:
    return record.name.partition(".")[0] in OURS


def _is_new(record: logging.LogRecord) -> bool:
    return not hasattr(record, _SAID)
