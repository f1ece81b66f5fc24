"""Text that a terminal or log shows as it is, and commands as the user types them."""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import shlex
import shutil
import sys
import threading
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import typer

from node.errors import DiskFullError, NodeError
from node.storage.atomic_files import FULL

MOST = 4000
"""Characters of one text that are shown."""


def printable(text: str, most: int = MOST) -> str:
    """The text in one line, of at most ``most`` characters and a mark that it was cut.

    Whatever Unicode does not call printable (controls, escapes, newlines, formats such as
    bidirectional and zero-width ones, lone surrogates, blanks other than the space) is replaced by
    its Python escape. Printable text comes back as it is.
    """
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} characters more)"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def printable_lines(text: str, most: int = 16 * MOST) -> str:
    """:func:`printable` of a text whose lines and tabs are its own, such as a stack trace."""
    if len(text) > most:
        text = f"{text[:most]}… ({len(text) - most} characters more)"
    return "".join(c if c in "\n\t" or c.isprintable() else _escaped(c) for c in text)


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def say(text: str, *, err: bool = False) -> None:
    """Print one line on standard output, or on standard error."""
    typer.echo(printable(text), err=err)


def say_on(text: str) -> None:
    """Print a piece of a text on standard output, its lines its own, with no end of line behind."""
    typer.echo(printable_lines(text), nl=False)


class PrintableFormatter(logging.Formatter):
    """Puts a record into one line; only the lines of a stack trace follow it, set in by two."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """The record's line."""
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:  # noqa: N802
        """The lines of a stack trace."""
        return indent(printable_lines(super().formatException(ei)), "  ")  # type: ignore[arg-type]

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        """The lines of a stack."""
        return indent(printable_lines(super().formatStack(stack_info)), "  ")


def guard_terminal() -> None:
    """Make printable what Python shows where nobody else does: messages logged without a log,
    and errors that end a thread."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(PrintableFormatter("%(message)s"))
    logging.lastResort = handler
    threading.excepthook = _log_thread_error


def _log_thread_error(error: threading.ExceptHookArgs) -> None:
    if error.exc_value is not None and not isinstance(error.exc_value, SystemExit):
        name = error.thread.name if error.thread else "of no name"
        logging.getLogger(__name__).critical("thread %s ended", name, exc_info=error.exc_value)


NAME = "swarm-node"


COMMANDS = (
    *("demo", "plan", "init", "join", "seed", "watch", "found", "status", "runs", "logs", "stop"),
    *("peers", "plot", "dashboard", "rollouts", "doctor", "conformance", "eval", "play", "ask"),
    *("compare", "checkpoints", "rollback", "export", "identity"),
)
"""What may follow the name: after any other word, a text speaks of the program."""


_COMMAND = re.compile(rf"(?<![\w./-]){NAME}(?= (?:--|(?:{'|'.join(COMMANDS)})\b))")


def as_typed(text: str) -> str:
    """Return a text whose commands work as they are printed.

    ``swarm-node COMMAND`` stays if the shell finds this very program by its name. Otherwise the
    program's path takes the place of the name, as after an installation into an environment that
    is not activated.
    """
    return _COMMAND.sub(lambda _: program(), text)


@cache
def program() -> str:
    """Return the program's name, or its absolute path, quoted for a shell."""
    # Not resolved: the Python of an environment is a link out of it.
    installed = Path(sys.executable).absolute().parent / NAME
    found = shutil.which(NAME)
    if not installed.exists() or (found and installed.samefile(found)):
        return NAME
    return shlex.quote(str(installed))


log = logging.getLogger(__name__)

GONE = (errno.EPIPE, errno.EIO)
"""Of a pipe that nobody reads any more, and of a terminal that was closed."""


_STDERR = 2


class LastingOutput(io.FileIO):
    """A descriptor that fails once at most: what is written afterwards is lost.

    Where its reader is gone nothing is raised, and the log says so.

    Attributes:
        drops: whether that holds for whatever else keeps it from being written.
    """

    drops = False

    def write(self, data: Any) -> int:
        """Write, or drop what nobody can read.

        Raises:
            NodeError: it cannot be written, as on a full disk.
        """
        try:
            return super().write(data)
        except OSError as error:
            # Python writes what is left once more when it exits, and a second failure is a trace
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if error.errno not in GONE and not self.drops:
                raise _write_error(error) from error
            self._tell(error)
        return len(data)

    def _tell(self, error: OSError) -> None:
        extra = None
        if self.fileno() == _STDERR:
            from node.monitor.logs import SAID

            extra = SAID  # to the log alone: standard error is in the middle of a write
        if error.errno in GONE:
            text = "nobody reads descriptor %d any more: what is shown is lost"
            log.info(text, self.fileno(), extra=extra)
        else:
            text = "descriptor %d cannot be written (%s): what is shown is lost"
            log.warning(text, self.fileno(), error.strerror, extra=extra)


def _write_error(error: OSError) -> NodeError:
    what = f"cannot write to standard output ({error.strerror})"
    if error.errno in FULL:
        return DiskFullError(what, None, "Free some space there, or send it to another place.")
    return NodeError(what, None, "Send it to another place.")


def last() -> None:
    """Let nothing that this process prints end it.

    A reader that is gone is no error, and a character that the encoding lacks is shown by its
    Python escape. Standard output that cannot be written raises a :class:`NodeError`, once.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            raw = LastingOutput(stream.fileno(), "w", closefd=False)
        except (AttributeError, OSError):
            continue  # closed from the start, or put in place by whoever called this process
        raw.drops = name == "stderr"  # there is no other place to say it
        stream.flush()
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            ),
        )


def drop_what_fails() -> None:
    """Lose what cannot be written from here on, for a node that has more to do than to show it."""
    if isinstance(raw := getattr(getattr(sys.stdout, "buffer", None), "raw", None), LastingOutput):
        raw.drops = True
