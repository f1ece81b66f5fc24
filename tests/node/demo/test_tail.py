"""A metrics file is followed without reading it again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from node.demo import run as run_module
from node.demo.run import RecordTail
from tests.node.monitor.test_monitor import RECORD


def line(number: int) -> str:
    return json.dumps(replace(RECORD, round=number).to_dict()) + "\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "metrics.jsonl"


def rounds(followed: RecordTail) -> list[int]:
    return [record.round for record in followed.look()]


def test_what_is_added_is_found_and_a_half_line_waits(path: Path) -> None:
    followed = RecordTail(path)
    assert rounds(followed) == []
    with path.open("a") as file:
        file.write(line(1) + line(2)[:9])
        file.flush()
        assert rounds(followed) == [1]
        file.write(line(2)[9:] + line(3))
        file.flush()
        assert rounds(followed) == [1, 2, 3]
    assert rounds(followed) == [1, 2, 3]


def test_what_was_read_is_not_read_again(path: Path) -> None:
    followed = RecordTail(path)
    path.write_text(line(1))
    followed.look()
    with path.open("r+") as file:
        file.write("x")
        file.seek(0, 2)
        file.write(line(2))
    assert rounds(followed) == [1, 2]


def test_a_file_in_the_place_of_the_one_before_adds_its_new_rounds(path: Path) -> None:
    followed = RecordTail(path)
    path.write_text(line(1) + line(2) + line(3))
    followed.look()
    thinned = path.with_name("thinned")
    thinned.write_text(line(1) + line(3) + line(4))
    thinned.replace(path)
    assert rounds(followed) == [1, 2, 3, 4]


def test_no_more_is_kept_than_can_be_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "KEPT", 5)
    path.write_text("".join(map(line, range(1, 21))))
    assert rounds(RecordTail(path)) == [16, 17, 18, 19, 20]
