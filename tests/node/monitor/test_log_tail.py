"""What is read of a log that grows and is kept under other names meanwhile."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from logging.handlers import RotatingFileHandler
from pathlib import Path

import pytest

from node.errors import NodeError
from node.monitor.logs import FILES, LogTail

ROOT = Path(__file__).parents[3]


class Log:
    """A log of few lines a file, as the node's is of many."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handler = RotatingFileHandler(path, maxBytes=1 << 20, backupCount=FILES - 1)

    def say(self, *lines: str) -> None:
        for line in lines:
            self._handler.emit(logging.makeLogRecord({"msg": line}))

    def turn_over(self) -> None:
        self._handler.doRollover()

    def close(self) -> None:
        self._handler.close()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    with closing(Log(tmp_path / "node.log")) as log:
        yield log


def test_what_is_added_is_read_once_and_lines_as_wholes(log):
    log.say("one", "two")
    with closing(LogTail(log.path)) as tail:
        assert tail.new() == ["one", "two"]
        assert tail.new() == []
        with log.path.open("ab") as file:
            file.write("thr\u00e9".encode()[:-1])
            file.flush()
            assert tail.new() == []
            assert tail.rest() == ["thr\ufffd"]
            file.write("\u00e9e\x0b\rwith\n".encode()[1:])
        assert tail.new() == ["thr\u00e9e\x0b\rwith"]
        assert tail.rest() == []


@pytest.mark.parametrize("turns", range(1, FILES))
def test_nothing_is_missed_while_files_are_kept_under_other_names(log, turns):
    log.say("0")
    with closing(LogTail(log.path)) as tail:
        assert tail.new() == ["0"]
        expected = []
        for turn in range(turns):
            log.say(f"before {turn}")
            log.turn_over()
            log.say(f"after {turn}")
            expected += [f"before {turn}", f"after {turn}"]
        assert tail.new() == expected
        log.say("on")
        assert tail.new() == ["on"]


def test_what_is_left_of_a_log_that_outran_its_reader_is_read_in_order(log):
    log.say("0")
    with closing(LogTail(log.path)) as tail:
        for turn in range(1, FILES + 2):
            log.turn_over()
            log.say(str(turn))
        read = tail.new()
    assert read == ["0", *map(str, range(2, FILES + 2))]


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, ["5"]), (3, ["3", "4", "5"]), (9, list("12345"))]
)
def test_the_last_lines_are_taken_from_earlier_files_too(log, count, expected):
    log.say("1", "2")
    log.turn_over()
    log.say("3")
    log.turn_over()
    log.say("4", "5")
    with closing(LogTail(log.path)) as tail:
        assert tail.last(count) == expected
        log.say("6")
        assert tail.new() == ["6"]


def test_what_is_there_can_be_skipped(log):
    log.say("before")
    with closing(LogTail(log.path, skip=True)) as tail:
        log.say("after")
        assert tail.new() == ["after"]


def test_a_log_that_is_not_there_is_named(tmp_path):
    with pytest.raises(NodeError, match=r"nothing\.log"):
        LogTail(tmp_path / "nothing.log")


PROGRAM = """
import logging, sys
from pathlib import Path
from node.config.config import Config
from node.monitor import logs
from node.monitor.output import say
from node.monitor.rollouts import LastRollouts
from node.monitor.sinks import open_sinks
from node.storage.run_folder import RunFolder
from tests.node.monitor.test_monitor import RECORD

logs.FILE_BYTES = 300
folder = RunFolder(Path(sys.argv[1]))
logs.start_logging(folder.log, "info")
for number in range(3):
    logging.getLogger("node").warning("%s", f"a warning of {number}")
    say(f"said {number}")
    say(f"complained {number}", err=True)
    logging.getLogger("node").info("%s", f"{number}" + "x" * 250)
*_, view = open_sinks(Config(), folder, LastRollouts())
view.write(RECORD)
"""


def test_what_a_node_prints_to_its_log_is_there_once_and_moves_on_with_it(tmp_path):
    log = tmp_path / "node.log"
    with log.open("ab") as output:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(tmp_path)],
            stdout=output,
            stderr=output,
            check=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    with closing(LogTail(log)) as tail:
        lines = tail.last(100)
    for what in ("a warning of 2", "said 2", "complained 2"):
        assert sum(what in line for line in lines) == 1, "once, and in a file that is still there"
    (told,) = [line for line in lines if "round 7 |" in line]
    assert "INFO node.monitor.live" in told
