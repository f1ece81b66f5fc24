"""A journal that was lost is known as lost, whatever is left of it and whatever the clock says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swarm import journal as journal_module
from swarm.common.clock import VirtualClock
from swarm.journal import Journal, backup_path, open_or_restore
from tests.swarm.experience_parts import START

EPOCH = 28_333_333


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


def drawn(journal: Journal) -> set[int]:
    return set(journal.next_indexes(EPOCH, 8, 256))


def test_a_journal_that_a_power_cut_left_empty_goes_on_from_its_backup(path: Path) -> None:
    journal = Journal(path, VirtualClock())
    first = drawn(journal)
    journal.backup()
    journal.close()
    path.write_bytes(b"")
    journal, notes = open_or_restore(path, VirtualClock())
    assert "the file is empty" in notes[0] and backup_path(path).name in notes[1]
    assert not first & drawn(journal)


@pytest.mark.parametrize("resumed_twice", [False, True])
def test_a_rebuilding_that_was_cut_short_is_done_again(path, monkeypatch, resumed_twice):
    journal = Journal(path, VirtualClock())
    first = drawn(journal)
    journal.close()
    path.write_bytes(b"garbage " * 1000)

    def cut(finished: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "replace_durably", cut)
        for _ in range(1 + resumed_twice):
            with pytest.raises(KeyboardInterrupt):
                open_or_restore(path, VirtualClock())
    assert not path.exists()
    journal, notes = open_or_restore(path, VirtualClock())
    assert "cut short" in notes[0]
    assert not first & drawn(journal)
    journal.close()
    again, notes = open_or_restore(path, VirtualClock())
    assert notes == ()
    again.close()


def test_what_an_old_rebuilding_left_takes_no_journal_away_that_was_used_since(path: Path) -> None:
    left = path.with_name(path.name + ".rebuilt")
    left.write_bytes(b"")
    os.utime(left, (START, START))
    journal = Journal(path, VirtualClock())
    first = drawn(journal)
    journal.close()
    journal, notes = open_or_restore(path, VirtualClock())
    assert notes == ()
    again = drawn(journal)
    assert again and not first & again


def test_a_journal_restored_while_the_clock_is_behind_counts_from_when_it_was_written(path: Path):
    journal = Journal(path, VirtualClock(START))
    journal.backup()
    journal.close()
    path.write_bytes(b"garbage " * 1000)
    os.utime(path, (START + 30, START + 30))
    os.utime(backup_path(path), (START, START))
    assert open_or_restore(path, VirtualClock(START - 3600))[0].restored_at == START + 30


def test_a_restored_journal_counts_from_its_last_sequence_where_files_tell_less(path: Path) -> None:
    journal = Journal(path, VirtualClock(START))
    journal.next_sequence()
    journal.backup()
    journal.close()
    path.unlink()
    os.utime(backup_path(path), (0, 0))
    assert open_or_restore(path, VirtualClock(START - 3600))[0].restored_at == START
