import errno
import logging
import os
import re
import sys
from contextlib import closing
from logging.handlers import RotatingFileHandler

import psutil
import pytest

from experiments.virtual_clock import VirtualClock
from node.errors import DiskFullError, NodeError
from node.monitor import logs
from node.monitor.logs import FILES, LogTail, start_logging
from swarm.common.counters import PERIOD_SECONDS, UNREPEATED
from swarm.journal import JournalError
from tests.node.programs import python
from tests.swarm.experience_parts import wait

pytestmark = pytest.mark.usefixtures("root_logger")
FULL = JournalError("run/journal.sqlite", "disk is full", "free some space and start again")
PRINTS = """
import logging, sys
from pathlib import Path
from node.config.config import Config
from node.monitor import logs
from node.monitor.output import say
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
*_, view = open_sinks(Config(), folder)
view.write(RECORD)
"""
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
    tell("resuming from round 4")
logging.getLogger("node").warning("peers are few")
log_error("no space left")
"""


def fail(error, message="publish failed"):
    try:
        raise error
    except Exception:
        logging.getLogger("swarm.test").exception(message)


def test_repeated_error_logs_one_line_every_ten_minutes(tmp_path, capsys):
    clock = VirtualClock()
    start_logging(tmp_path / "node.log", "info", clock=clock)
    for _ in range(360):
        fail(FULL)
        wait(clock, 10)
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert len(lines) == 3600 / PERIOD_SECONDS
    assert all("run/journal.sqlite" in line and "free some space" in line for line in lines)
    assert "(59 similar messages in 10 min)" in lines[1]
    assert len(capsys.readouterr().err.splitlines()) == len(lines)


def test_error_with_a_fix_logs_one_line_others_a_traceback(tmp_path):
    start_logging(tmp_path / "node.log", "info")
    fail(DiskFullError("no space left to write", tmp_path, "Free some space."), "a call failed")
    fail(FULL, f"a turn failed: {FULL}")
    first, second = (tmp_path / "node.log").read_text().splitlines()
    assert first.endswith(f"a call failed: no space left to write: {tmp_path}. Free some space.")
    assert second.count("free some space") == 1
    for error, debug in ((ValueError("odd"), False), (FULL, True)):
        start_logging(tmp_path / f"{debug}.log", "info", debug=debug)
        fail(error)
        assert "Traceback" in (tmp_path / f"{debug}.log").read_text(), "it has a traceback"


def test_log_is_limited_to_three_files(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    start_logging(tmp_path / "node.log", "info")
    for number in range(500):
        logging.getLogger("swarm.test").info("%s", f"note {number}")
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["node.log", "node.log.1", "node.log.2"]
    assert sum(each.stat().st_size for each in files) <= 3 * 2000
    assert "note 499" in files[0].read_text()


class Log:
    """A rotating log with few lines per file."""

    def __init__(self, path):
        self.path = path
        handler = RotatingFileHandler(path, maxBytes=1 << 20, backupCount=FILES - 1)
        self._emit, self.turn_over, self.close = handler.emit, handler.doRollover, handler.close

    def say(self, *lines):
        for line in lines:
            self._emit(logging.makeLogRecord({"msg": line}))


@pytest.fixture
def log(tmp_path):
    with closing(Log(tmp_path / "node.log")) as log:
        yield log


def test_log_tail_reads_each_whole_line_once(log):
    log.say("one", "two")
    with closing(LogTail(log.path)) as tail:
        assert tail.new() == ["one", "two"] and tail.new() == []
        with log.path.open("ab") as file:
            file.write("thr\u00e9".encode()[:-1])
            file.flush()
            assert tail.new() == [] and tail.rest() == ["thr\ufffd"]
            file.write("\u00e9e\x0b\rwith\n".encode()[1:])
        assert tail.new() == ["thr\u00e9e\x0b\rwith"] and tail.rest() == []


@pytest.mark.parametrize("turns", range(1, FILES))
def test_log_tail_misses_no_line_during_rotation(log, turns):
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


def test_slow_log_tail_reads_remaining_lines_in_order_or_skips(log):
    log.say("0")
    with closing(LogTail(log.path)) as tail:
        for turn in range(1, FILES + 2):
            log.turn_over()
            log.say(str(turn))
        assert tail.new() == ["0", *map(str, range(2, FILES + 2))]
    with closing(LogTail(log.path, skip=True)) as tail:
        log.say("after")
        assert tail.new() == ["after"]
    with pytest.raises(NodeError, match=r"nothing\.log"):
        LogTail(log.path.parent / "nothing.log")


@pytest.mark.parametrize(
    ("count", "expected"), [(0, []), (1, ["5"]), (3, ["3", "4", "5"]), (9, list("12345"))]
)
def test_last_lines_include_rotated_files(log, count, expected):
    for lines in ("12", "3"):
        log.say(*lines)
        log.turn_over()
    log.say("4", "5")
    with closing(LogTail(log.path)) as tail:
        assert tail.last(count) == expected
        log.say("6")
        assert tail.new() == ["6"]


def test_output_redirected_to_the_log_appears_once_and_rotates(tmp_path):
    log = tmp_path / "node.log"
    with log.open("ab") as output:
        python(PRINTS, str(tmp_path), stdout=output, stderr=output, check=True)
    with closing(LogTail(log)) as tail:
        lines = tail.last(100)
    for what in ("a warning of 2", "said 2", "complained 2"):
        assert sum(what in line for line in lines) == 1, "one line, in a kept file"
    (entry,) = [line for line in lines if "round 7 |" in line]
    assert "INFO node.monitor.live" in entry


def test_tracebacks_go_to_the_file_warnings_to_the_terminal(tmp_path, capsys):
    start_logging(tmp_path / "node.log", "info")
    logging.getLogger("node.run.training_loop").info("an ordinary message")
    fail(ValueError("odd tensor"), "round 3 failed")
    logging.getLogger("asyncio").error("a library's complaint")
    written = (tmp_path / "node.log").read_text()
    assert "an ordinary message" in written and "a library's complaint" in written
    assert "ValueError: odd tensor" in written
    shown = capsys.readouterr().err
    assert "round 3 failed" in shown
    assert "ordinary" not in shown and "library" not in shown and "Traceback" not in shown


@pytest.mark.parametrize("flags", [(), ("debug",), ("err",), ("err", "debug")])
def test_message_is_printed_once_and_logged_with_its_time(tmp_path, flags):
    result = python(PROGRAM, str(tmp_path / "node.log"), *flags, check=True)
    printed = result.stderr if "err" in flags else result.stdout
    assert printed.count("resuming from round 4") == 3
    assert (result.stdout + result.stderr).count("resuming from round 4") == 3
    timed = re.compile(r"[\d-]{10} [\d:,]{12} INFO node\.\S+: resuming from round 4")
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert sum(bool(timed.fullmatch(line)) for line in lines) == 3
    if not flags:
        assert "peers are few" in result.stderr and "no space left" not in result.stderr
        assert [line.split()[2] for line in lines] == ["INFO"] * 3 + ["WARNING", "ERROR"]
        assert "before there is a log" not in " ".join(lines)


def test_line_appears_once_if_output_is_the_log(tmp_path):
    with (log := tmp_path / "node.log").open("ab") as output:
        python(PROGRAM, str(log), stdout=output, stderr=output, check=True)
    lines = log.read_text().splitlines()
    assert sum("resuming from round 4" in line for line in lines) == 3
    assert sum("peers are few" in line for line in lines) == 1


def test_windows_log_rotates_once_no_other_process_reads_it(tmp_path, monkeypatch):
    """A node that was started with ``--detach`` writes its output to its log."""
    monkeypatch.setattr(sys, "platform", "win32")
    path, really, readers = tmp_path / "node.log", os.rename, [1]

    def rename(source, target):
        handles = [each.path for each in psutil.Process().open_files()].count(str(source))
        if handles + readers[0]:
            raise PermissionError(errno.EACCES, "Access is denied")
        really(source, target)

    def write(numbers):
        for number in numbers:
            logging.getLogger("node").info("line %d", number, extra=UNREPEATED)

    monkeypatch.setattr(os, "rename", rename)
    monkeypatch.setattr(logs, "FILE_BYTES", 1000)
    start_logging(path, "info")
    with path.open("ab") as output:
        monkeypatch.setattr(logs, "STDOUT", output.fileno())
        write(range(50))
        assert path.read_bytes().count(b"line ") == 50
        readers[0] = 0
        write([50])
        assert path.read_bytes().count(b"line ") == 1
        assert logs.goes_to(output.fileno(), path), "the output goes to the new log"
    assert logs.earlier_logs(path)[0].read_bytes().count(b"line ") == 50
