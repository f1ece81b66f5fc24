"""The console that tables and live views are drawn on."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from textwrap import indent
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from node.errors import NodeError
from node.storage.run_folder import RunFolder

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


LARGEST_WIDTH = 10_000
LEAST_WIDTH = 12
"""Of a column that folds, where what stands in it is as long."""


class Terminal(Console):
    """A rich console on which a text is only ever text.

    Markup in strings is not read: a name such as ``[/]`` would raise, and ``[link=…]`` be a link.
    What is set out by style is a :class:`rich.text.Text`.
    """

    def __init__(self, *, stderr: bool = False, soft_wrap: bool = False) -> None:
        super().__init__(stderr=stderr, soft_wrap=soft_wrap, markup=False, emoji=False)

    def render_str(self, text: str, **options: object) -> Text:
        """A string as it is drawn, so that columns are as wide as what is in them."""
        return super().render_str(printable_lines(text), **options)  # type: ignore[arg-type]

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The pieces of anything drawn; rich's own controls are no text."""
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=printable_lines(segment.text))
            )

    def print_table(self, table: Table) -> None:
        """Print a table of which every column that does not wrap is whole.

        The others are as narrow as that takes, but no narrower than can be read. A terminal that
        is narrower still breaks lines itself: rich would cut figures short, and leave out columns.
        """
        wide = self.options.update(width=LARGEST_WIDTH)
        least = self.measure(table, options=wide).maximum
        for column in table.columns:
            if not column.no_wrap:
                whole = self._whole(column, wide)
                column.min_width = min(whole, LEAST_WIDTH)
                least -= whole - column.min_width - 1  # rich may round each down by one
        before = self.width
        self.width = max(before, least)
        try:
            self.print(table)
        finally:
            self.width = before

    def _whole(self, column: Column, options: ConsoleOptions) -> int:
        """How wide a column is where nothing in it has to fold."""
        cells = (column.header, *column.cells)
        widest = max(Measurement.get(self, options, cell).maximum for cell in cells)
        return widest if column.max_width is None else min(widest, column.max_width)


STARTING, RUNNING, STOPPING, STOPPED = "starting", "running", "stopping", "stopped"
CRASHED = "crashed"
"""What a process that said nothing at its end has done."""

TOLD = ("name", "line", "model", "version")
"""What a peer may say of itself, signed and checked by nobody; null where it does not."""

OF_A_CONNECTION = ("link", "round_trip_s", "clock_ahead_s")
"""What is told of a peer as long as it is connected; null where it is not."""


def present_status(folder: RunFolder) -> dict[str, Any]:
    """What is true of a node now, by its status file and by who holds its folder.

    Besides what the file says: ``running``, ``state`` and ``age_s``, seconds since it was written.
    A node that does not run is connected to nobody.

    Raises:
        NodeError: it never ran, or its folder may not be read.
    """
    holder = folder.holder()
    try:
        told: Mapping[str, Any] = folder.read_status()
    except NodeError:
        if holder is None:
            raise
        told = {}
    state = _state(told, holder)
    works = state in (RUNNING, STOPPING)
    peers = [_now(peer, works) for peer in told.get("peers", [])]
    age = max(0.0, time.time() - told["time"]) if "time" in told else None
    return {
        **dict.fromkeys(("peer_id", "swarm_id", "swarm_name", "record")),
        "addresses": [],
        "pid": holder,
        **told,
        "dashboard": told.get("dashboard") if works else None,
        "public": told.get("public") if works else None,
        "peers": peers,
        "running": holder is not None,
        "state": state,
        "age_s": age,
    }


def _now(peer: Mapping[str, Any], works: bool) -> dict[str, Any]:
    """What was told of a peer, as far as it holds for a node that works or does not."""
    present = {**peer, "connected": works and peer.get("connected", False)}
    gone = () if works else (key for key in OF_A_CONNECTION if key in peer)
    return {**present, **dict.fromkeys(gone)}


def _state(told: Mapping[str, Any], holder: int | None) -> str:
    said = told.get("state", RUNNING if holder else STOPPED)  # not said by an earlier release
    if holder is None:
        return STOPPED if said == STOPPED else CRASHED
    return str(said) if told.get("pid") == holder else STARTING


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
