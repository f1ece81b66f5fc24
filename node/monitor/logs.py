"""Logging to node.log, warnings also to the terminal; readers of growing logs."""

from __future__ import annotations

import logging
import os
import sys
from collections import deque
from collections.abc import Callable
from copy import copy
from io import TextIOWrapper
from itertools import takewhile
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import BinaryIO

from rich.logging import RichHandler

from node.errors import NodeError
from node.monitor.output import OURS, PrintableFormatter, discard_output, ours, printable, say
from node.monitor.record import Terminal
from swarm.common.clock import Clock, SystemClock
from swarm.common.counters import UNREPEATED, Repeats
from swarm.common.util import make_private
from swarm.journal import JournalError

log = logging.getLogger(__name__)

STDOUT, STDERR = 1, 2
FILE_BYTES = 10_000_000
FILES = 3
ERROR = "error: "  # prefix of the last line of a command that fails
_LOGGED = f" ERROR {__name__}: "
_SAID = "said"
SAID = {_SAID: True, **UNREPEATED}  # ``extra`` of a message that the terminal already shows


def start_logging(
    path: Path, level: str, *, debug: bool = False, clock: Clock | None = None
) -> None:
    """Log the project's messages at ``level`` and its libraries' warnings to ``path``.

    The log takes at most three files of 10 MB. Repeated messages appear once in ten minutes
    (:mod:`swarm.common.counters`). An error that names its remedy has no stack trace. With
    ``debug`` the terminal shows everything that the file gets, with all stack traces. If standard
    error is that file, each message appears in it once.
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
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False  # the descriptor is closed, or the file is missing


def log_error(text: str) -> bool:
    """Log the error that ends this command; return whether stderr is the log."""
    files = [each for each in logging.getLogger().handlers if isinstance(each, _LogFile)]
    if files:
        log.error("%s", text, extra=SAID)
    return any(goes_to(STDERR, Path(each.baseFilename)) for each in files)


def error_in(line: str) -> str | None:
    """Extract the error that ended a command from a printed or logged line, if any."""
    if line.startswith(ERROR):
        return line
    return f"{ERROR}{line.partition(_LOGGED)[2]}" if _LOGGED in line else None


def earlier_logs(path: Path) -> list[Path]:
    """List the paths of rotated log files, newest first; some may not exist."""
    return [path.with_name(f"{path.name}.{number}") for number in range(1, FILES)]


def _terminal(debug: bool) -> logging.Handler:
    console = Terminal(stderr=True)
    handler: logging.Handler = logging.StreamHandler()
    if console.is_terminal:
        handler = RichHandler(console=console, show_path=False)
    handler.setLevel(logging.DEBUG if debug else logging.WARNING)
    handler.setFormatter(PrintableFormatter("%(message)s") if debug else _MessageOnly())
    handler.addFilter(lambda record: not hasattr(record, _SAID))
    if not debug:
        handler.addFilter(ours)
    return handler


class _LogFile(RotatingFileHandler):
    """A rotating log that reports once on the terminal that it cannot write.

    Standard output and error that go to the file follow it to the new file on rotation.
    """

    _failed = False

    def _open(self) -> TextIOWrapper:
        make_private(Path(self.baseFilename))
        return super()._open()

    def doRollover(self) -> None:  # noqa: N802 - logging's name
        path = Path(self.baseFilename)
        outputs = [each for each in (STDOUT, STDERR) if goes_to(each, path)]
        if sys.platform == "win32":
            discard_output(*outputs)  # Windows renames no open file
        try:
            super().doRollover()
        except PermissionError:
            if sys.platform != "win32":
                raise
            self.stream = self._open()  # another process reads it, so it grows for now
        assert self.stream is not None, "the next file is opened at once"
        for descriptor in outputs:
            os.dup2(self.stream.fileno(), descriptor)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        if not self._failed:
            self._failed = True
            error = sys.exc_info()[1]
            say(
                f"the log failed: {self.baseFilename} cannot be written: {error}. Free some "
                "space there; further messages are lost until then",
                err=True,
            )


class _MessageOnly(logging.Formatter):
    """One line per record; only the file has stack traces."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(" ".join(record.getMessage().split()))


class _RemediesFormatter(PrintableFormatter):
    """A formatter that replaces the stack trace of an error with a remedy by its text."""

    def format(self, record: logging.LogRecord) -> str:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, NodeError | JournalError):
            record = copy(record)
            text = record.getMessage()
            record.msg = text if str(error) in text else f"{text}: {error}"
            record.args, record.exc_info, record.exc_text = (), None, None
        return super().format(record)


class LogTail:
    """A reader of a log's lines, with rotated files; ``skip`` all, or all but ``most`` bytes."""

    def __init__(self, path: Path, *, skip: bool = False, most: int = 0) -> None:
        self._path = path
        self._begun = b""
        self._file = self._opened(path)
        size = self._file.seek(0, os.SEEK_END)
        self._file.seek(size if skip else max(0, size - most) if most else 0)
        if most and size > most:
            self._file.readline()

    def close(self) -> None:
        self._file.close()

    def last(self, count: int) -> list[str]:
        """Return the last lines, including earlier files; :meth:`new` continues."""
        lines = deque(self.new(), maxlen=count)
        for path in earlier_logs(self._path):
            missing = count - len(lines)
            if missing <= 0 or not path.exists():
                break
            old_lines = path.read_bytes().split(b"\n")[:-1]
            lines.extendleft(_text(line) for line in reversed(old_lines[-missing:]))
        return list(lines)

    def new(self) -> list[str]:
        """Return the whole lines added since the last call."""
        paths = self._unread()  # before reading: a file with a successor does not grow
        lines = self._lines()
        for path in paths:
            self._file.close()
            self._file = self._opened(path)
            lines += self._lines()
        return lines

    def rest(self) -> list[str]:
        """Return the partial last line, such as that of a killed writer, if there is one."""
        return [_text(self._begun)] if self._begun else []

    def _lines(self) -> list[str]:
        *complete, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [_text(line) for line in complete]

    def _unread(self) -> list[Path]:
        """List the files started after the current one, oldest first."""
        current = os.fstat(self._file.fileno())
        existing = [p for p in (self._path, *earlier_logs(self._path)) if p.exists()]
        newer = takewhile(lambda path: not os.path.samestat(path.stat(), current), existing)
        return list(newer)[::-1]

    @staticmethod
    def _opened(path: Path) -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            remedy = "A node writes it when it starts; run the command as the user of the node."
            raise NodeError(f"cannot read the log ({error.strerror})", path, remedy) from error


def _text(line: bytes) -> str:
    return line.decode(errors="replace")


def teller(path: Path, *, err: bool = False) -> Callable[[str], None]:
    """Return a function that logs a line and prints it unless the output is the log."""

    def tell(line: str) -> None:
        log.info("%s", line, extra=SAID)
        if not goes_to(STDERR if err else STDOUT, path):
            say(line, err=err)

    return tell
