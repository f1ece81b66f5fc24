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
from node.monitor.lasting_output import last
from node.monitor.terminal import Terminal
logging.basicConfig(filename=sys.argv[1], level="INFO")
last()
for number in range(3):
    print("\u2013", number, flush=True)
    Terminal().print("\u2502", number)
    sys.stdin.readline()
print("done", file=sys.stderr)
"""


def program(log: Path, output: int, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(log)],
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
