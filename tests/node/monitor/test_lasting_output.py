"""What a node prints, where nobody reads it or its encoding lacks a character."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import logging, sys
from node.monitor.output import drop_what_fails, last
from node.monitor.terminal import Terminal
logging.basicConfig(filename=sys.argv[1], level="INFO")
last()
if "drop" in sys.argv:
    drop_what_fails()
for number in range(3):
    print("\u2013", number, flush=True)
    Terminal().print("\u2502", number)
    sys.stdin.readline()
print("done", file=sys.stderr)
"""


def program(log: Path, output: int, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log), *arguments],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_a_character_that_the_encoding_lacks_is_spelled_out(tmp_path):
    with program(tmp_path / "log", subprocess.PIPE, PYTHONIOENCODING="latin-1") as node:
        out, err = node.communicate("\n\n\n", timeout=300)
    assert node.returncode == 0, err
    assert out.splitlines()[:2] == ["\\u2013 0", "\\u2502 0"]


@pytest.mark.parametrize("opened", [os.pipe, pty.openpty], ids=["a pipe", "a terminal"])
def test_a_reader_that_goes_away_ends_nothing_and_is_told_once(tmp_path, opened):
    ours, theirs = opened()
    with program(tmp_path / "log", theirs) as node:
        os.close(theirs)
        assert os.read(ours, 64)
        os.close(ours)
        _, err = node.communicate("\n\n\n", timeout=300)
    assert (node.returncode, err) == (0, "done\n")
    assert (tmp_path / "log").read_text().count("nobody reads descriptor 1") == 1


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no device that is full")


def on_a_full_disk(log: Path, *arguments: str) -> tuple[int, str]:
    """Exit status and standard error of the program."""
    with FULL.open("wb") as full, program(log, full.fileno(), *arguments) as node:
        _, err = node.communicate("\n\n\n", timeout=300)
    return node.returncode, err


@needs_full
def test_output_on_a_full_disk_is_an_error_with_a_remedy_and_fails_once(tmp_path):
    status, err = on_a_full_disk(tmp_path / "log")
    *_, last = err.splitlines()
    assert status == 1, "not 120, of a second failure when Python ends"
    assert "cannot write to standard output (No space left on device). Free some space" in last


@needs_full
def test_a_node_whose_output_is_on_a_full_disk_goes_on_and_says_so_once(tmp_path):
    assert on_a_full_disk(tmp_path / "log", "drop") == (0, "done\n")
    text = "descriptor 1 cannot be written (No space left on device): what is shown is lost"
    assert (tmp_path / "log").read_text().count(text) == 1


@needs_full
@pytest.mark.parametrize("end", ["", "\n"], ids=["not flushed", "flushed"])
def test_a_command_on_a_full_disk_is_one_line_and_fails(end):
    program = (
        "import typer; from node.cli import program\n"
        f"program.app.command('shown')(lambda: print('words', end={end!r}, flush={bool(end)}))\n"
        "raise SystemExit(program.main(lambda: False))"
    )
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, "shown"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=300,
        )
    assert done.stderr == (
        "error: cannot write to standard output (No space left on device). "
        "Free some space there, or send it to another place.\n"
    )
    assert done.returncode == 1


@needs_full
def test_nothing_is_said_on_a_standard_error_that_is_being_written(tmp_path):
    program = (
        "import logging, sys; from node.monitor.output import last\n"
        "last()\n"
        "from pathlib import Path; from node.monitor.logs import start_logging\n"
        "start_logging(Path(sys.argv[1]), 'info', debug=True)\n"
        "print('words', file=sys.stderr)"
    )
    with FULL.open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "log")],
            stderr=full,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=300,
        )
    assert done.returncode == 0
    assert (tmp_path / "log").read_text().count("descriptor 2 cannot be written") == 1
