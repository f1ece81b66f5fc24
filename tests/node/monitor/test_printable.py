"""Text from outside is shown as text, wherever it is shown."""

from __future__ import annotations

import ast
import io
import logging
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from node.monitor.live import LivePanel
from node.monitor.logs import start_logging
from node.monitor.output import MOST, guard_terminal, printable, say, say_on
from node.monitor.rollouts import LastRollouts
from node.monitor.terminal import Terminal
from tests.node.monitor.test_monitor import RECORD
from tests.parsing import parse

ROOT = Path(__file__).resolve().parents[3]
ACTS = "\x1b]0;owned\x07\x1b[2J\r\nforged\x9b31m\x7f\u202eevil\u2066\u2028\u200b\x00\ud800"
SPEAKS = {"node/monitor/output.py", "node/monitor/terminal.py"}
# These write JSON, whose strings are ASCII, or texts of this program alone.
JSON = {"node/cli/options.py", "node/cli/demo.py", "node/cli/program.py", "node/monitor/sinks.py"}
CHILDREN = {"experiments/worker.py", "node/engines/process/worker.py"}


def test_only_characters_that_do_something_are_replaced():
    assert printable("héllo, 世界 ½ 🙂 [bold] \\x1b") == "héllo, 世界 ½ 🙂 [bold] \\x1b"
    assert printable("a\x1b[31mb\nc\u202ed") == r"a\x1b[31mb\nc\u202ed"


@given(st.text(st.characters(codec=None), max_size=200))
def test_whatever_comes_in_what_goes_out_is_printable(text):
    shown = printable(text)
    assert shown.isprintable()
    assert printable(shown) == shown
    shown.encode()


def test_a_long_text_is_cut_and_says_so():
    shown = printable("\x1b" * 1_000_000)
    assert len(shown) <= 4 * MOST + 40
    assert shown.endswith("(996000 characters more)")


def test_a_line_is_said_as_one_line(capsys):
    say(ACTS)
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    assert shown.strip().isprintable()


def test_pieces_of_a_text_are_said_one_behind_the_other(capsys):
    for piece in ("an ", "answer\n", ACTS):
        say_on(piece)
    shown = capsys.readouterr().out
    assert shown.startswith("an answer\n")
    assert shown.replace("\n", "").isprintable()


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.lastResort, threading.excepthook
    yield root
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, logging.lastResort, threading.excepthook = before


def complain(words: str) -> None:
    """A message and a stack trace, both with somebody's words in it."""
    try:
        raise ValueError(words)
    except ValueError:
        logging.getLogger("swarm.test").exception("peer %s, %r", words, words)


@pytest.mark.parametrize("debug", [False, True])
def test_no_message_and_no_stack_trace_forges_a_line_of_the_log(
    tmp_path, capsys, root_logger, debug
):
    start_logging(tmp_path / "node.log", "info", debug=debug)
    complain("x\n2026-01-01 00:00:00,000 WARNING node: forged" + ACTS)
    written = (tmp_path / "node.log").read_text()
    first, *trace = written.splitlines()
    assert "peer x" in first
    assert trace
    assert all(line.startswith("  ") for line in trace), "a record begins at the margin"
    for text in (written, capsys.readouterr().err):
        assert text
        assert text.replace("\n", "").isprintable()


def test_messages_without_a_log_and_errors_of_threads_are_printable_too(capsys, root_logger):
    root_logger.handlers[:] = []
    guard_terminal()
    complain(ACTS)
    thread = threading.Thread(target=complain_aloud, name=f"slow {ACTS[:4]}")
    thread.start()
    thread.join()
    shown = capsys.readouterr().err
    assert "peer \\x1b" in shown
    assert "thread slow \\x1b]0; ended" in shown
    assert shown.replace("\n", "").isprintable()


def complain_aloud() -> None:
    raise ValueError(ACTS)


def drawn(terminal: Terminal, *things: object) -> str:
    terminal.file = io.StringIO()
    for thing in things:
        terminal.print(thing)
    return terminal.file.getvalue()


def test_a_table_shows_names_with_escapes_and_markup_as_they_are():
    table = Table(title=ACTS)
    table.add_column("[/]" + ACTS)
    table.add_row(ACTS)
    table.add_row("[link=https://evil.example]click[/link] [/] :skull:")
    table.add_row(Text(ACTS))
    terminal = Terminal()
    terminal.width = 200
    shown = drawn(terminal, table, ACTS, "[/nothing]")
    assert shown.replace("\n", "").isprintable()
    for part in ("[link=https://evil.example]click[/link] [/] :skull:", "[/nothing]", r"\x1b]0;"):
        assert part in shown


def test_a_live_panel_takes_any_title():
    terminal = Terminal()
    terminal.file = io.StringIO()
    panel = LivePanel("[/]" + ACTS, 3, LastRollouts(), terminal)
    panel.write(RECORD)
    panel.close()
    shown = terminal.file.getvalue()
    assert r"\x1b]0;" in shown
    assert shown.replace("\n", "").isprintable()


def test_nothing_is_shown_but_through_these_two_files():
    """Who prints by another way shows what strangers wrote as they wrote it."""
    for path in [
        p for floor in ("node", "swarm", "protocol") for p in (ROOT / floor).rglob("*.py")
    ]:
        name = path.relative_to(ROOT).as_posix()
        if name in SPEAKS | JSON | CHILDREN:
            continue
        used = {ast.unparse(n.func) for n in ast.walk(parse(path.read_text())) if is_call(n)}
        assert not used & {
            "print",
            "typer.echo",
            "typer.secho",
            "sys.stdout.write",
            "sys.stderr.write",
            "Console",
            "logging.Formatter",
            "traceback.print_exc",
            "Text.from_markup",
        }, name


def is_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call)
