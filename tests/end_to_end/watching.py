"""Helpers that watch running node processes."""

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from node.demo.node_process import NodeProcess
from node.monitor.history import read_records

PATIENCE = 300.0
OUT_OF_TIME = {"over_budget", "timeout", "abandoned"}
"""Reasons for refusal that only a lack of time causes."""


def wait_until(condition: Callable[[], bool], process: NodeProcess, what: str) -> None:
    """Poll until ``condition`` holds; fail if the process ends or the time is up."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert process.exit_code is None, f"{what}: the node ended: {process.last_words()}"
        assert time.monotonic() < deadline, f"{what}: timed out after {PATIENCE:.0f} s"
        time.sleep(0.05)


def externals(process: NodeProcess) -> int:
    return sum(r.groups_external for r in read_records(process.folder))


def rounds(process: NodeProcess) -> int:
    records = read_records(process.folder)
    return records[-1].round if records else 0


def journal_rows(folder: Path, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(f"file:{folder / 'journal.sqlite'}?mode=ro", uri=True) as connection:
        return connection.execute(query).fetchall()


def repeated(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [row for row, times in Counter(rows).items() if times > 1]
