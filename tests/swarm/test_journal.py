"""The journal: unique numbers, whole transactions, and recovery of broken files."""

import os
import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.virtual_clock import VirtualClock
from swarm import journal as journal_module
from swarm.journal import (
    KEPT_DRAWS,
    KEPT_EPOCHS,
    VERSION,
    Journal,
    JournalCorrupt,
    JournalError,
    backup_path,
    open_or_restore,
)
from swarm.reputation import read_accounts
from tests.swarm.experience_parts import START, wait

ROOT = Path(__file__).parents[2]
ENDLESS = "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT x, x FROM r"
ENDLESS_VIEW = f"DROP TABLE draws; CREATE VIEW draws (epoch, next) AS {ENDLESS}"
ENDLESS_TRIGGER = (
    f"CREATE TRIGGER t BEFORE INSERT ON numbers BEGIN INSERT INTO draws {ENDLESS}; END"
)
SLOW_CHECK = """DROP TABLE draws; CREATE TABLE draws (epoch INTEGER PRIMARY KEY, next INTEGER
NOT NULL CHECK (length(randomblob(1000000000)))); PRAGMA ignore_check_constraints = 1;
INSERT INTO draws VALUES (1, 1)"""


def next_index(journal: Journal, epoch: int) -> int | None:
    """Return one sample of a time slot that has 1,000; None if it has no more."""
    return next(iter(journal.next_indexes(epoch, 1, 1000)), None)


def test_sequence_starts_at_clock_ms_and_rises_if_it_stops_or_steps_back():
    wall = SimpleNamespace(time=lambda: START)
    journal = Journal(":memory:", wall)
    first = int(START * 1000)
    assert [journal.next_sequence() for _ in range(3)] == [first, first + 1, first + 2]
    wall.time = lambda: START - 3600
    assert journal.next_sequence() == first + 3


def test_sample_indexes_are_issued_once_up_to_the_limit(journal):
    batches = [list(journal.next_indexes(5, count, 6)) for count in (1, 0, 3, 4, 4)]
    assert batches == [[0], [], [1, 2, 3], [4, 5], []]
    assert next_index(journal, 6) == 0
    assert list(journal.next_indexes(5, 4, 3)) == []
    assert list(journal.next_indexes(5, 4, 7)) == [6]


def test_indexes_stay_used_after_a_clock_jump_and_old_slots_are_pruned(journal):
    assert next_index(journal, 5) == 0
    assert next_index(journal, 5 + 10 * KEPT_EPOCHS) == 0
    assert next_index(journal, 5) == 1
    for epoch in range(KEPT_DRAWS + 10):
        next_index(journal, epoch)
    next_index(journal, 20 * KEPT_EPOCHS)
    assert journal.read("SELECT count(*) FROM draws") == [(KEPT_DRAWS,)]


def test_reopened_journal_continues_its_numbers_without_notes(journal, path, clock):
    sequence, index = journal.next_sequence(), next_index(journal, 5)
    journal.close()
    journal, notes = open_or_restore(path, clock)
    assert (notes, journal.restored_at) == ((), None)
    assert (journal.next_sequence(), next_index(journal, 5)) == (sequence + 1, index + 1)


def test_threads_never_get_the_same_number(journal) -> None:
    issued: list[tuple[int, int | None]] = []

    def take() -> None:
        for _ in range(50):
            issued.append((journal.next_sequence(), next_index(journal, 1)))

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(take)
    assert sorted(index for _, index in issued) == list(range(200))
    assert len({sequence for sequence, _ in issued}) == 200


def test_a_transaction_that_fails_changes_nothing(journal) -> None:
    with pytest.raises(ZeroDivisionError), journal.transaction() as connection:
        connection.execute("INSERT INTO draws VALUES (1, 1)")
        1 / 0  # noqa: B018
    assert journal.read("SELECT * FROM draws") == []
    assert next_index(journal, 1) == 0


def test_killed_process_never_issues_a_number_twice(path):
    script = """
        import sys
        from swarm.common.clock import SystemClock
        from swarm.journal import Journal
        journal = Journal(sys.argv[1], SystemClock())
        while True:
            print(journal.next_sequence(), *journal.next_indexes(9, 2, 10**9), flush=True)
    """
    issued = []
    for lines in (1, 7, 30, 3):
        issued += [tuple(map(int, line.split())) for line in killed_after(lines, script, path)]
    sequences = [sequence for sequence, *_ in issued]
    indices = [index for _, *pair in issued for index in pair]
    assert (sequences, indices) == (sorted(set(sequences)), sorted(set(indices)))
    assert len(issued) >= 41


def killed_after(lines: int, script: str, *arguments: object) -> list[str]:
    """Kill a script with SIGKILL after some lines; return all lines it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    output = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest, _ = process.communicate()
    output += rest.splitlines(keepends=True)
    return [line for line in output if line.endswith("\n")]


@pytest.mark.parametrize(
    "damage",
    [
        *("garbage", "truncated", "flipped", "DROP TABLE used"),
        ENDLESS_VIEW,
        ENDLESS_TRIGGER,
        SLOW_CHECK,
    ],
)
def test_open_reports_a_damaged_journal(path, clock, damage):
    fill_journal(path, clock)
    damage_file(path, damage)
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite"):
        Journal(path, clock)
    if damage != "flipped":  # Reading other pages does not find the flipped bytes.
        with pytest.raises(JournalCorrupt, match=r"journal\.sqlite"):
            read_accounts(path)


def test_damaged_journal_is_restored_from_backup_and_reported(journal, path, clock, caplog):
    caplog.set_level("INFO")
    next_index(journal, 1)
    journal.backup()
    lost = [journal.next_sequence() for _ in range(5)]
    assert next_index(journal, 41) == 0
    journal.close()
    damage_file(path, "garbage")
    for file in (path, backup_path(path)):
        os.utime(file, (START, START))
    wait(clock, 1.0)
    journal, notes = open_or_restore(path, clock)
    assert "not a database" in notes[0]
    assert backup_path(path).name in notes[1]
    assert "backup" in caplog.text
    (moved,) = path.parent.glob("*.corrupt-*")
    assert moved.name in notes[1]
    assert journal.next_sequence() > max(lost)
    assert journal.restored_at == START + 1
    issued = [next_index(journal, epoch) for epoch in (41, 40, 42)]
    assert issued == [None, None, 0], "the running time slot is skipped"


@pytest.mark.parametrize("backup", [None, b"not a database at all" * 100])
def test_damaged_journal_without_a_usable_backup_starts_empty(path, clock, backup):
    fill_journal(path, clock)
    damage_file(path, "garbage")
    if backup:
        backup_path(path).write_bytes(backup)
    journal, notes = open_or_restore(path, clock)
    assert "started empty" in notes[1]
    assert next_index(journal, 1) is None
    assert journal.next_sequence() == int(START * 1000)


def test_backup_is_consistent_during_writes(journal, clock) -> None:
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            journal.next_sequence()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(5):
            copy = Journal(journal.backup(), clock)
            assert copy.next_sequence() <= journal.next_sequence()
            copy.close()
    finally:
        stop.set()
        writer.join()


def test_open_rejects_a_newer_layout_and_reports_a_missing_folder(path, clock):
    fill_journal(path, clock)
    for layout in (99, VERSION + 1):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version={layout}")
        match = rf"layout {layout}.*knows {VERSION}.*update swarm-node"
        with pytest.raises(JournalError, match=match) as error:
            open_or_restore(path, clock)
        assert not isinstance(error.value, JournalCorrupt)
    with pytest.raises(JournalError, match="run folder exists and is writable"):
        Journal(path.parent / "nowhere" / "journal.sqlite", clock)


def test_locked_journal_raises_a_clear_error(journal, path, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY_SECONDS", 0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="stop the other process"):
        journal.next_sequence()
    other.execute("ROLLBACK")
    assert journal.next_sequence()


def test_full_disk_raises_clear_error_and_loses_no_data(path, clock):
    script = """
        import resource, sys
        from swarm.common.clock import SystemClock
        from swarm.journal import Journal, JournalError
        journal = Journal(sys.argv[1], SystemClock())
        journal.next_indexes(1, 1, 10)
        journal.backup()
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        stored = 0
        try:
            while True:
                with journal.transaction() as connection:
                    connection.execute(
                        "INSERT INTO frames VALUES (?, 0, 0, 0, x'', 0, ?)",
                        (stored.to_bytes(8, "big"), bytes(20_000))
                    )
                stored += 1
        except JournalError as error:
            print(stored, error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 200_000))
        try:
            journal.backup()
        except JournalError as error:
            print(error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    first, second = result.stdout.splitlines()
    assert "free some space" in first and "free some space" in second
    stored = int(first.split()[0])
    assert stored > 0
    for file in (path, backup_path(path)):
        assert next_index(Journal(file, clock), 1) == 1
    assert Journal(path, clock).read("SELECT count(*) FROM frames") == [(stored,)]


def fill_journal(path: Path, clock: VirtualClock) -> None:
    """Close a journal of many pages, so its write-ahead log is empty."""
    journal = Journal(path, clock)
    with journal.transaction() as connection:
        rows = [(epoch, 1) for epoch in range(5000)]
        connection.executemany("INSERT INTO draws VALUES (?, ?)", rows)
    journal.close()


def damage_file(path: Path, damage: str) -> None:
    if " " in damage:
        with closing(sqlite3.connect(path)) as connection:
            connection.executescript(damage)
        return
    data = bytearray(path.read_bytes())
    if damage == "garbage":
        data = bytearray(b"this was a journal once\n" * 400)
    elif damage == "truncated":
        del data[len(data) // 2 :]
    else:
        middle = len(data) // 8192 * 4096
        data[middle : middle + 64] = bytes(b ^ 0xFF for b in data[middle : middle + 64])
    path.write_bytes(data)


def test_journal_accepts_only_the_first_claimed_identity(path, clock):
    anna, ben = bytes([1]) * 32, bytes([2]) * 32
    with closing(Journal(path, clock)) as journal:
        assert journal.claim("identity", anna) and journal.claim("identity", anna)
        assert journal.claim("swarm", ben), "each name is claimed separately"
    with closing(Journal(path, clock)) as journal:
        assert not journal.claim("identity", ben)
        assert journal.claim("identity", anna)
