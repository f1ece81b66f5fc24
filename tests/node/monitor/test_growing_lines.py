"""Files of lines are read while another process is in the middle of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from node.dashboard.rounds import Rounds
from node.demo.run import RecordTail
from node.monitor.history import read_history
from tests.node.monitor.test_monitor import RECORD

LINES = 3000


def written_in_halves(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        for number in range(1, LINES + 1):
            line = json.dumps(replace(RECORD, round=number).to_dict()).encode() + b"\n"
            file.write(line[: len(line) // 2])
            file.write(line[len(line) // 2 :])


def followed(path: Path) -> Callable[[], int]:
    tail = RecordTail(path)
    return lambda: (tail.look() or [RECORD])[-1].round


def drawn(path: Path) -> Callable[[], int]:
    rounds = Rounds(path)

    def newest() -> int:
        rounds.look()
        assert not rounds.damaged
        return rounds.latest[-1].round if rounds.latest else 0

    return newest


def read_whole(path: Path) -> Callable[[], int]:
    return lambda: len(read_history(path.parent))


@pytest.mark.parametrize("reader", [followed, drawn, read_whole])
def test_a_line_that_is_ended_while_it_is_read_is_read_once_and_whole(
    reader: Callable[[Path], Callable[[], int]], tmp_path: Path
) -> None:
    path = tmp_path / "metrics.jsonl"
    newest = reader(path)
    with ProcessPoolExecutor(1, get_context("spawn")) as processes:
        writing = processes.submit(written_in_halves, path)
        while not writing.done():
            newest()
        writing.result()
    assert newest() == LINES
