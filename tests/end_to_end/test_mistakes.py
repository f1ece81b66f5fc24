"""Whoever makes a mistake is told in one line what is wrong, where, and what to do about it."""

from __future__ import annotations

import re
from pathlib import Path

import places
import pytest
from commands import Command
from mistakes import Mistake, mistakes

from tests.end_to_end import forked

pytestmark = pytest.mark.processes

MISTAKES = tuple(mistakes())
EVERY = 37
SAMPLE = [m for m in MISTAKES if not m.place.startswith("a_closed")][::EVERY]
"""A fair part; closed folders are open to root."""


def assert_told(mistake: Mistake, ended: forked.Ended) -> None:
    """One line with the key, the value behind it, and behind both a sentence with the remedy."""
    assert "Traceback" not in ended.out + ended.err
    assert ended.out == ""
    (line,) = ended.err.splitlines()
    key, value = map(re.escape, mistake.named)
    remedy = re.escape(mistake.remedy)
    assert re.fullmatch(rf"error: .*{key}.*{value}.*[.?:)] .*{remedy}.*", line), line
    assert line.endswith((".", "?", ".)")), line
    assert not line.startswith("error: unexpected")
    assert len(line) < 600, line
    assert ended.status == mistake.status


def make(mistake: Mistake, folder: Path) -> None:
    """The folder it happens in."""
    folder.mkdir()
    getattr(places, mistake.place)(folder)
    if mistake.file is not None:
        (folder / "node" / "node.toml").write_text(mistake.file)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.title)
def test_a_mistake_is_told_in_one_line_with_its_remedy(mistake: Mistake, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    make(mistake, folder)
    assert_told(mistake, forked.run(mistake.command, folder))


@pytest.mark.parametrize("mistake", SAMPLE, ids=lambda mistake: mistake.title)
def test_a_process_of_its_own_tells_the_same(mistake: Mistake, tmp_path: Path) -> None:
    folder = tmp_path / "here"
    make(mistake, folder)
    command = Command(folder, *mistake.command)
    try:
        status = command.wait()
        told = forked.Ended(status, "\n".join(command.out), "\n".join(command.err))
    finally:
        command.close()
    assert_told(mistake, told)


def test_the_tables_name_no_mistake_twice() -> None:
    titles = [mistake.title for mistake in MISTAKES]
    assert len(titles) == len(set(titles)) >= 200
