"""Safe output: printable text, runnable commands, streams that may fail."""

from __future__ import annotations

import codecs
import errno
import io
import logging
import os
import re
import shlex
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from textwrap import indent
from threading import Timer
from typing import Any

import typer

from node.errors import DiskFullError, NodeError
from node.storage.atomic_files import FULL

log = logging.getLogger(__name__)

MOST = 4000  # default maximum characters of one text


def printable(text: str, most: int = MOST) -> str:
    """Return the text as one line of up to ``most`` characters, then a cut mark.

    Characters that Unicode calls unprintable are replaced by their Python escapes: controls,
    newlines, bidirectional and zero-width formats, lone surrogates, blanks other than the space.
    """
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} characters more)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(text: str, most: int = 16 * MOST) -> str:
    """Apply :func:`printable` but keep line breaks and tabs (stack traces)."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} characters more)"
    return "".join(c if c in "\n\t" or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


REPLACED = {"–": "-", "−": "-", "—": "-", "…": "...", "×": "x", "→": "->", "±": "+-"}
PLAIN = "swarm-node-plain"  # the name of an error handler for str.encode


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(REPLACED.get(each) or _escaped(each) for each in characters), error.end


codecs.register_error(PLAIN, _plain)


def encodable(text: str, encoding: str) -> str:
    """Replace the characters that an encoding lacks, by ASCII ones or by their escapes."""
    return text.encode(encoding, PLAIN).decode(encoding)


_displays: list[Any] = []  # consoles with a spinner, bar or panel at the bottom of the terminal


@contextmanager
def display_on(console: Any) -> Iterator[None]:
    """Have :func:`say` print above what a rich console shows during the block."""
    consoles = [console] if console.is_terminal else []
    _displays.extend(consoles)
    try:
        yield
    finally:
        for each in consoles:
            _displays.remove(each)


def say(text: str, *, err: bool = False) -> None:
    """Print one line on standard output, or on standard error."""
    stream = sys.stderr if err else sys.stdout
    if _displays and stream and stream.isatty():
        _displays[-1].print(printable(text), soft_wrap=True, highlight=False)
    else:
        typer.echo(printable(text), err=err)


LONG_WAIT_SECONDS = 2.0  # a shorter wait needs no line in the output of a script


def say_if_long(text: str, *, err: bool = False) -> Timer:
    """Print a line after a while, unless the returned timer is cancelled before."""
    timer = Timer(LONG_WAIT_SECONDS, say, (text,), {"err": err})
    timer.daemon = True
    timer.start()
    return timer


def say_on(text: str) -> None:
    """Print a text with its line breaks on standard output, without a final newline."""
    typer.echo(printable_lines(text), nl=False)


class PrintableFormatter(logging.Formatter):
    """A formatter of one line per record, followed only by an indented stack trace."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        return indent(printable_lines(super().formatException(ei)), "  ")  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return indent(printable_lines(super().formatStack(stack_info)), "  ")


OURS = ("node", "swarm", "protocol")


def ours(record: logging.LogRecord) -> bool:
    """Return whether a message is of this program and not of a library."""
    return record.name.partition(".")[0] in OURS


def guard_terminal(*, debug: bool = False) -> None:
    """Make Python's messages without a log and its thread errors printable.

    Without ``debug``, the warnings of libraries are hidden, as in a command with a log.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    if not debug:
        handler.addFilter(lambda record: ours(record) or record.levelno >= logging.ERROR)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.lastResort = handler

    def log_thread_error(error: threading.ExceptHookArgs) -> None:
        if error.exc_value is not None and not isinstance(error.exc_value, SystemExit):
            name = error.thread.name if error.thread else "of no name"
            log.critical("thread %s ended", name, exc_info=error.exc_value)

    threading.excepthook = log_thread_error


NAME = "swarm-node"

# Words that may follow the name in a command. Before any other word the name is plain text.
COMMANDS = (
    *("demo", "plan", "init", "join", "bootstrap", "observe", "create", "status", "list", "logs"),
    *("stop", "peers", "trust", "block", "warm-start", "plot", "dashboard", "rollouts", "doctor"),
    *("conformance", "eval", "play", "ask", "compare", "checkpoints", "rollback", "export"),
    "identity",
)

_COMMAND = re.compile(rf"(?<![\w./-]){NAME}(?= (?:--|(?:{'|'.join(COMMANDS)})\b))")


def as_typed(text: str) -> str:
    """Return a text with this program's path in commands if the shell cannot find it."""
    return _COMMAND.sub(lambda _: program(), text)


@cache
def program() -> str:
    """Return the program's name, or its absolute path, quoted for a shell."""
    # Not resolved: an environment's Python is a link to a file outside it.
    installed = Path(sys.executable).absolute().parent / NAME
    on_path = shutil.which(NAME)
    if not installed.exists() or (on_path and installed.samefile(on_path)):
        return NAME
    return shlex.quote(str(installed))


# A pipe without a reader, which on Windows is an invalid argument, and a closed terminal.
GONE = (errno.EPIPE, errno.EIO, *((errno.EINVAL,) if sys.platform == "win32" else ()))

_STDERR = 2


def discard_output(*descriptors: int) -> None:
    """Drop whatever is written to these descriptors from now on."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    for descriptor in descriptors:
        os.dup2(devnull, descriptor)
    os.close(devnull)


class GuardedOutput(io.FileIO):
    """A descriptor that fails at most once; the log reports a reader that is gone."""

    drops = False  # whether to treat every other write error the same way

    def write(self, data: Any) -> int:
        """Write, or drop output without a reader; raise NodeError if the write fails."""
        try:
            return super().write(data)
        except OSError as error:
            # Python flushes again at exit; a second failure would print a stack trace.
            discard_output(self.fileno())
            if error.errno not in GONE and not self.drops:
                problem = f"cannot write to standard output ({error.strerror})"
                if error.errno in FULL:
                    remedy = "Free some space there, or redirect the output."
                    raise DiskFullError(problem, None, remedy) from error
                raise NodeError(problem, None, "Redirect the output.") from error
            self._tell(error)
        return len(data)

    def _tell(self, error: OSError) -> None:
        extra = None
        if self.fileno() == _STDERR:
            from node.monitor.logs import SAID

            extra = SAID  # only to the log: a write to standard error is in progress
        if error.errno in GONE:
            text = "descriptor %d is closed: further output is lost"
            log.info(text, self.fileno(), extra=extra)
        else:
            text = "descriptor %d cannot be written (%s): further output is lost"
            log.warning(text, self.fileno(), error.strerror, extra=extra)


def guard_output() -> None:
    """Keep output errors from ending this process.

    Missing readers and characters (escaped) are not errors; others raise :class:`NodeError` once.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            if sys.platform == "win32" and stream.isatty():
                # Its console takes characters: bytes would be read in another encoding.
                stream.reconfigure(errors="backslashreplace")
                continue
            raw = GuardedOutput(stream.fileno(), "w", closefd=False)
        except (AttributeError, OSError):
            continue  # closed from the start, or replaced by the caller
        raw.drops = name == "stderr"  # there is no other place to report it
        stream.flush()
        wrapper = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=stream.encoding,
            errors=PLAIN,
            line_buffering=stream.line_buffering,
            write_through=stream.write_through,
        )
        setattr(sys, name, wrapper)


def drop_failed_output() -> None:
    """Drop output that cannot be written from now on; the node keeps running."""
    if isinstance(raw := getattr(getattr(sys.stdout, "buffer", None), "raw", None), GuardedOutput):
        raw.drops = True
