"""What is said on the terminal stands in the log, with its time, and once on either."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROGRAM = """
import logging, sys
from pathlib import Path
from node.monitor.logs import log_error, start_logging
from node.monitor.logs import teller

path = Path(sys.argv[1])
log_error("before there is a log")
start_logging(path, "info", debug="debug" in sys.argv)
tell = teller(path, err="err" in sys.argv)
for _ in range(3):
    tell("goes on from round 4")
logging.getLogger("node").warning("peers are few")
log_error("no space left")
"""


def run(folder: Path, *flags: str, **streams: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder / "node.log"), *flags],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        text=True,
        **(streams or {"capture_output": True}),
    )


def logged(folder: Path) -> list[str]:
    return (folder / "node.log").read_text().splitlines()


@pytest.mark.parametrize("flags", [(), ("debug",), ("err",), ("err", "debug")])
def test_a_line_is_printed_once_and_logged_with_its_time(tmp_path: Path, flags) -> None:
    ended = run(tmp_path, *flags)
    said = ended.stderr if "err" in flags else ended.stdout
    assert said.count("goes on from round 4") == 3
    assert (ended.stdout + ended.stderr).count("goes on from round 4") == 3
    timed = re.compile(r"[\d-]{10} [\d:,]{12} INFO node\.\S+: goes on from round 4")
    assert sum(bool(timed.fullmatch(line)) for line in logged(tmp_path)) == 3


def test_warnings_and_the_last_error_stand_in_the_log_too(tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert "peers are few" in ended.stderr and "no space left" not in ended.stderr
    levels = [line.split()[2] for line in logged(tmp_path)]
    assert levels == ["INFO"] * 3 + ["WARNING", "ERROR"]
    assert "before there is a log" not in " ".join(logged(tmp_path))


def test_where_the_output_is_the_log_each_line_stands_there_once(tmp_path: Path) -> None:
    with (tmp_path / "node.log").open("ab") as output:
        run(tmp_path, stdout=output, stderr=output)
    lines = logged(tmp_path)
    assert sum("goes on from round 4" in line for line in lines) == 3
    assert sum("peers are few" in line for line in lines) == 1
