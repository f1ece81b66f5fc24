"""A node that generates beside its updates, killed and stopped as users do."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.end_to_end.commands import join

pytestmark = pytest.mark.processes

OVERLAP = ("--set=schedule.mode=async", "--set=schedule.max_staleness=2")


@pytest.mark.parametrize("share", [0, 1])
def test_a_killed_node_goes_on_with_its_groups_and_trains_on_none_twice(
    tmp_path: Path, share: int
) -> None:
    options = (*OVERLAP, f"--set=schedule.oversample={share}")
    with join(tmp_path, *options) as first:
        first.until(lambda: len(first.records()) >= 5)
        engines = first.children("node.engines.process.worker")
        assert engines
        first.process.kill()
        first.wait()
        begun, used = _own(tmp_path)
        assert begun and not begun & used
        done = len(first.records())

    with join(tmp_path, *options) as second:
        second.until(lambda: len(second.records()) >= done + 5)
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 0
        assert not second.odd_log_lines()
        left, trained = _own(tmp_path)
        assert begun <= left | trained and used <= trained and not left & trained
    assert not any(engine.is_running() for engine in engines)


def _own(folder: Path) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """TaskIndexes of the own groups that are begun, and of those that an update took."""
    with closing(sqlite3.connect(folder / "swarm-run" / "journal.sqlite")) as journal:
        begun = journal.execute("SELECT epoch, number FROM begun").fetchall()
        used = journal.execute("SELECT epoch, number FROM used WHERE author=x''").fetchall()
    return set(begun), set(used)
