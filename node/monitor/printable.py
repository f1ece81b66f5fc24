"""Text that a terminal or log shows as it is, and commands as the user types them."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sys
import threading
from functools import cache
from pathlib import Path
from textwrap import indent

import typer

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
