"""What node.log has of what goes wrong for hours: a line, and a number."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.errors import DiskFullError
from node.monitor import logs
from node.monitor.logs import start_logging
from swarm.common.clock import VirtualClock
from swarm.common.counters import PERIOD_SECONDS
from swarm.journal import JournalError
from tests.swarm.experience_parts import wait

log = logging.getLogger("swarm.test")
FULL = JournalError("run/journal.sqlite", "disk is full", "free some space and start again")


@pytest.fixture(autouse=True)
def root_logger() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def fail(error: Exception, message: str = "publish failed") -> None:
    try:
        raise error
    except Exception:
        log.exception(message)


def test_a_disk_that_is_full_for_an_hour_is_a_line_every_ten_minutes_without_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = VirtualClock()
    start_logging(tmp_path / "node.log", "info", clock=clock)
    for _ in range(360):
        fail(FULL)
        wait(clock, 10)
    lines = (tmp_path / "node.log").read_text().splitlines()
    assert len(lines) == 3600 / PERIOD_SECONDS
    assert all("run/journal.sqlite" in line and "free some space" in line for line in lines)
    assert "(59 more like it in 10 min)" in lines[1]
    assert len(capsys.readouterr().err.splitlines()) == len(lines)


def test_an_error_that_names_its_remedy_is_told_in_the_line_and_once(tmp_path: Path) -> None:
    start_logging(tmp_path / "node.log", "info")
    fail(DiskFullError("no space left to write", tmp_path, "Free some space."), "a call failed")
    fail(FULL, f"a turn failed: {FULL}")
    first, second = (tmp_path / "node.log").read_text().splitlines()
    assert first.endswith(f"a call failed: no space left to write: {tmp_path}. Free some space.")
    assert second.count("free some space") == 1


def test_any_other_error_has_its_trace_and_so_has_every_one_in_debugging(tmp_path: Path) -> None:
    start_logging(tmp_path / "node.log", "info")
    fail(ValueError("odd"))
    assert "Traceback" in (tmp_path / "node.log").read_text()
    start_logging(tmp_path / "debug.log", "info", debug=True)
    fail(FULL)
    assert "Traceback" in (tmp_path / "debug.log").read_text()


def test_the_log_keeps_to_three_files_of_its_size(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "FILE_BYTES", 2000)
    start_logging(tmp_path / "node.log", "info")
    for number in range(500):
        log.info("%s", f"note {number}")
    files = sorted(tmp_path.iterdir())
    assert [each.name for each in files] == ["node.log", "node.log.1", "node.log.2"]
    assert sum(each.stat().st_size for each in files) <= 3 * 2000
    assert "note 499" in files[0].read_text()
