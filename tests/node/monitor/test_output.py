import ast
import io
import logging
import os
import pty
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from node.cli.program import app
from node.monitor import output
from node.monitor.logs import start_logging
from node.monitor.output import (
    COMMANDS,
    MOST,
    PLAIN,
    as_typed,
    guard_terminal,
    printable,
    say,
    say_on,
)
from node.monitor.record import Terminal
from tests.node.monitor.test_monitor import RECORD, panel_of
from tests.node.programs import ROOT, python
from tests.parsing import parse

HERE = {**os.environ, "PYTHONPATH": str(ROOT)}
ACTS = "\x1b]0;owned\x07\x1b[2J\r\nforged\x9b31m\x7f\u202eevil\u2066\u2028\u200b\x00\ud800"
PRINTERS = {"node/monitor/output.py", "node/monitor/record.py"}
# These write only JSON, whose strings are ASCII, or the program's own texts.
JSON = {"node/cli/options.py", "node/cli/demo.py", "node/cli/program.py", "node/monitor/sinks.py"}
CHILDREN = {"experiments/workers.py", "node/engines/process/worker.py"}
PRINTS = {"print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write", "Console"}
PRINTS |= {"logging.Formatter", "traceback.print_exc", "Text.from_markup"}
PROGRAM = """
import logging, sys
from node.monitor.output import drop_failed_output, guard_output
from node.monitor.record import Terminal
logging.basicConfig(filename=sys.argv[1], level="INFO")
guard_output()
if "drop" in sys.argv:
    drop_failed_output()
for number in range(3):
    print("\u2013", number, flush=True)
    Terminal().print("\u2502", number)
    sys.stdin.readline()
print("done", file=sys.stderr)
"""
FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
INSTALLED = Path(sys.executable).parent / "swarm-node"


def test_printable_escapes_control_characters_and_truncates():
    assert printable("héllo, 世界 ½ 🙂 [bold] \\x1b") == "héllo, 世界 ½ 🙂 [bold] \\x1b"
    assert printable("a\x1b[31mb\nc\u202ed") == r"a\x1b[31mb\nc\u202ed"
    shown = printable("\x1b" * 1_000_000)
    assert len(shown) <= 4 * MOST + 40 and shown.endswith("(996000 characters more)")


@given(st.text(st.characters(codec=None), max_size=200))
def test_printable_always_returns_printable_text(text):
    shown = printable(text)
    assert shown.isprintable() and printable(shown) == shown
    shown.encode()


def test_say_prints_one_safe_line(capsys):
    say(ACTS)
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1 and shown.strip().isprintable()
    for piece in ("an ", "answer\n", ACTS):
        say_on(piece)
    shown = capsys.readouterr().out
    assert shown.startswith("an answer\n") and shown.replace("\n", "").isprintable()


def complain(words):
    """Log a message and a traceback that both contain ``words``."""
    try:
        raise ValueError(words)
    except ValueError:
        logging.getLogger("swarm.test").exception("peer %s, %r", words, words)


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize("debug", [False, True])
def test_hostile_text_cannot_forge_a_log_line(tmp_path, capsys, debug):
    start_logging(tmp_path / "node.log", "info", debug=debug)
    complain("x\n2026-01-01 00:00:00,000 WARNING node: forged" + ACTS)
    written = (tmp_path / "node.log").read_text()
    first, *trace = written.splitlines()
    assert "peer x" in first and trace
    assert all(line.startswith("  ") for line in trace), "only a record starts at the margin"
    for text in (written, capsys.readouterr().err):
        assert text and text.replace("\n", "").isprintable()


def test_thread_errors_and_unlogged_messages_are_printable(capsys, root_logger):
    root_logger.handlers[:] = []
    guard_terminal()
    complain(ACTS)
    complain_aloud = Mock(side_effect=ValueError(ACTS))
    thread = threading.Thread(target=complain_aloud, name=f"slow {ACTS[:4]}")
    thread.start()
    thread.join()
    shown = capsys.readouterr().err
    assert "peer \\x1b" in shown and "thread slow \\x1b]0; ended" in shown
    assert shown.replace("\n", "").isprintable()


@pytest.mark.parametrize("debug", [False, True])
def test_command_hides_library_warnings_without_debug(capsys, root_logger, debug):
    root_logger.handlers[:] = []
    guard_terminal(debug=debug)
    library = logging.getLogger("bitsandbytes.backends")
    library.warning("a kernel is missing")
    library.error("the library failed")
    logging.getLogger("node.policy").warning("the policy is large")
    shown = capsys.readouterr().err
    assert ("a kernel is missing" in shown) is debug
    assert "the library failed" in shown and "the policy is large" in shown


def test_table_escapes_control_characters_and_markup():
    link = "[link=https://evil.example]click[/link] [/] :skull:"
    table = Table("[/]" + ACTS, title=ACTS)
    for cell in (ACTS, link, Text(ACTS)):
        table.add_row(cell)
    terminal = Terminal()
    terminal.file, terminal.width = io.StringIO(), 200
    for thing in (table, ACTS, "[/nothing]"):
        terminal.print(thing)
    shown = terminal.file.getvalue()
    assert shown.replace("\n", "").isprintable()
    for part in (link, "[/nothing]", r"\x1b]0;"):
        assert part in shown


def test_live_panel_escapes_any_title():
    terminal = Terminal()
    terminal.file = io.StringIO()
    shown = panel_of(RECORD, title="[/]" + ACTS, rounds=3, console=terminal)
    assert r"\x1b]0;" in shown and shown.replace("\n", "").isprintable()


def test_only_allowed_files_print_to_the_terminal():
    """Other ways to print would not escape texts of unknown peers."""
    layers = ("node", "swarm", "protocol")
    for path in (path for layer in layers for path in (ROOT / layer).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        if name not in PRINTERS | JSON | CHILDREN:
            calls = (n for n in ast.walk(parse(path.read_text())) if isinstance(n, ast.Call))
            assert not PRINTS & {ast.unparse(call.func) for call in calls}, name


def started(log, output, *arguments, **environment):
    command, pipe = [sys.executable, "-c", PROGRAM, str(log), *arguments], subprocess.PIPE
    streams = {"stdin": pipe, "stdout": output, "stderr": pipe, "text": True}
    return subprocess.Popen(command, env={**HERE, **environment}, **streams)


def test_columns_stay_aligned_with_a_limited_encoding():
    terminal, table = Terminal(), Table("swarm", "name", "age")
    for row in (("6aa3e92d…", "Zoë", "–"), ("none", "ann", "3 s")):
        table.add_row(*row)
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=PLAIN)
    terminal.file, terminal.width = file, 60
    terminal.print(table)
    file.seek(0)
    shown = file.read()
    assert "6aa3e92d... " in shown and "Zo\\xeb " in shown and "- " in shown
    assert len({len(line) for line in shown.splitlines()}) == 1


def test_unencodable_character_is_escaped(tmp_path):
    with started(tmp_path / "log", subprocess.PIPE, PYTHONIOENCODING="latin-1") as node:
        out, err = node.communicate("\n\n\n", timeout=300)
    assert node.returncode == 0, err
    assert out.splitlines()[:2] == ["- 0", "\\u2502 0"]


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty], ids=["a pipe", "a terminal"])
def test_closed_reader_is_logged_once_and_stops_nothing(tmp_path, opened):
    ours, theirs = opened()
    with started(tmp_path / "log", theirs) as node:
        os.close(theirs)
        assert os.read(ours, 64)
        os.close(ours)
        _, err = node.communicate("\n\n\n", timeout=300)
    assert (node.returncode, err) == (0, "done\n")
    assert (tmp_path / "log").read_text().count("descriptor 1 is closed") == 1


def on_a_full_disk(log, *arguments):
    """Run the program on a full disk; return exit status and standard error."""
    with FULL.open("wb") as full, started(log, full.fileno(), *arguments) as node:
        _, err = node.communicate("\n\n\n", timeout=300)
    return node.returncode, err


@needs_full
def test_output_to_a_full_disk_fails_once_with_a_fix(tmp_path):
    status, err = on_a_full_disk(tmp_path / "log")
    *_, last = err.splitlines()
    assert status == 1, "120 would be a second failure when Python exits"
    assert "cannot write to standard output (No space left on device). Free some space" in last


@needs_full
def test_node_on_a_full_disk_logs_once_and_continues(tmp_path):
    assert on_a_full_disk(tmp_path / "log", "drop") == (0, "done\n")
    text = "descriptor 1 cannot be written (No space left on device): further output is lost"
    assert (tmp_path / "log").read_text().count(text) == 1


@needs_full
@pytest.mark.parametrize("end", ["", "\n"], ids=["not flushed", "flushed"])
def test_command_on_a_full_disk_fails_with_one_line(end):
    code = (
        "import typer; from node.cli import program\n"
        f"program.app.command('shown')(lambda: print('words', end={end!r}, flush={bool(end)}))\n"
        "raise SystemExit(program.main(lambda: False))"
    )
    with FULL.open("wb") as full:
        done = python(code, "shown", stdout=full, stderr=subprocess.PIPE)
    failed = "cannot write to standard output (No space left on device)"
    message = f"error: {failed}. Free some space there, or redirect the output.\n"
    assert (done.returncode, done.stderr) == (1, message)


@needs_full
def test_failed_stderr_write_is_only_logged(tmp_path):
    code = (
        "import logging, sys; from node.monitor.output import guard_output\n"
        "guard_output()\n"
        "from pathlib import Path; from node.monitor.logs import start_logging\n"
        "start_logging(Path(sys.argv[1]), 'info', debug=True)\n"
        "print('words', file=sys.stderr)"
    )
    with FULL.open("wb") as full:
        assert python(code, str(tmp_path / "log"), stderr=full).returncode == 0
    assert (tmp_path / "log").read_text().count("descriptor 2 cannot be written") == 1


@pytest.fixture(autouse=True)
def _ask_again():
    output.program.cache_clear()


def test_as_typed_keeps_a_command_found_on_the_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", f"{INSTALLED.parent}{os.pathsep}{os.defpath}")
    assert as_typed("next: swarm-node join --peers A") == "next: swarm-node join --peers A"
    output.program.cache_clear()
    other = tmp_path / "swarm-node"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert as_typed("swarm-node join") == f"{shlex.quote(str(INSTALLED))} join"


def test_every_command_is_known():
    groups = {group.name for group in app.registered_groups}
    assert set(COMMANDS) == groups | {command.name for command in app.registered_commands}


@pytest.mark.parametrize("path", ["", "/nowhere"])
def test_as_typed_uses_a_full_path_if_shell_finds_no_command(monkeypatch, path, tmp_path):
    monkeypatch.setenv("PATH", path)
    typed = as_typed("swarm-node --version")
    assert Path(shlex.split(typed)[0]).is_absolute()
    result = subprocess.run(["/bin/sh", "-c", typed], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("swarm-node ")


def test_as_typed_ignores_other_text(monkeypatch):
    monkeypatch.setenv("PATH", "")
    paths = ("/opt/bin/swarm-node join", "https://example.org/swarm-node join")
    words = ("Install swarm-node again.", "my-swarm-node join", "swarm-node.service runs")
    for text in (*words, *paths):
        assert as_typed(text) == text
