"""The journal: numbers handed out once, whole transactions, and what happens to a broken file."""

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


def draw_one(journal: Journal, epoch: int) -> int | None:
    """One draw of an epoch that has a thousand, None where it has no more."""
    return next(iter(journal.next_indexes(epoch, 1, 1000)), None)


def test_sequences_start_at_the_clocks_millisecond_and_rise_though_it_stands_still_or_goes_back():
    wall = SimpleNamespace(time=lambda: START)
    journal = Journal(":memory:", wall)
    first = int(START * 1000)
    assert [journal.next_sequence() for _ in range(3)] == [first, first + 1, first + 2]
    wall.time = lambda: START - 3600
    assert journal.next_sequence() == first + 3


def test_an_epochs_draws_are_used_once_and_end_at_the_limit(journal):
    draws = [list(journal.next_indexes(5, count, 6)) for count in (1, 0, 3, 4, 4)]
    assert draws == [[0], [], [1, 2, 3], [4, 5], []]
    assert draw_one(journal, 6) == 0
    assert list(journal.next_indexes(5, 4, 3)) == []
    assert list(journal.next_indexes(5, 4, 7)) == [6]


def test_draws_stay_used_though_the_clock_was_years_ahead_and_are_forgotten_after_many(journal):
    assert draw_one(journal, 5) == 0
    assert draw_one(journal, 5 + 10 * KEPT_EPOCHS) == 0
    assert draw_one(journal, 5) == 1
    for epoch in range(KEPT_DRAWS + 10):
        draw_one(journal, epoch)
    draw_one(journal, 20 * KEPT_EPOCHS)
    assert journal.read("SELECT count(*) FROM draws") == [(KEPT_DRAWS,)]


def test_a_journal_is_opened_again_without_a_word_and_its_numbers_go_on(journal, path, clock):
    sequence, index = journal.next_sequence(), draw_one(journal, 5)
    journal.close()
    journal, notes = open_or_restore(path, clock)
    assert (notes, journal.restored_at) == ((), None)
    assert (journal.next_sequence(), draw_one(journal, 5)) == (sequence + 1, index + 1)


def test_threads_never_get_the_same_number(journal) -> None:
    drawn: list[tuple[int, int | None]] = []

    def draw() -> None:
        for _ in range(50):
            drawn.append((journal.next_sequence(), draw_one(journal, 1)))

    with ThreadPoolExecutor(4) as threads:
        for _ in range(4):
            threads.submit(draw)
    assert sorted(index for _, index in drawn) == list(range(200))
    assert len({sequence for sequence, _ in drawn}) == 200


def test_a_transaction_that_fails_changes_nothing(journal) -> None:
    with pytest.raises(ZeroDivisionError), journal.transaction() as connection:
        connection.execute("INSERT INTO draws VALUES (1, 1)")
        1 / 0  # noqa: B018
    assert journal.read("SELECT * FROM draws") == []
    assert draw_one(journal, 1) == 0


def test_a_killed_process_never_draws_a_number_again(path):
    script = """
        import sys
        from swarm.common.clock import SystemClock
        from swarm.journal import Journal
        journal = Journal(sys.argv[1], SystemClock())
        while True:
            print(journal.next_sequence(), *journal.next_indexes(9, 2, 10**9), flush=True)
    """
    drawn = []
    for lines in (1, 7, 30, 3):
        drawn += [tuple(map(int, line.split())) for line in killed_after(lines, script, path)]
    sequences = [sequence for sequence, *_ in drawn]
    indices = [index for _, *pair in drawn for index in pair]
    assert (sequences, indices) == (sorted(set(sequences)), sorted(set(indices)))
    assert len(drawn) >= 41


def killed_after(lines: int, script: str, *arguments: object) -> list[str]:
    """Everything a script printed until it was killed with SIGKILL in the middle of its loop."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    seen = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    rest, _ = process.communicate()
    seen += rest.splitlines(keepends=True)
    return [line for line in seen if line.endswith("\n")]


@pytest.mark.parametrize(
    "damage", ["garbage", "truncated", "flipped", "DROP TABLE used", ENDLESS_VIEW, ENDLESS_TRIGGER]
)
def test_a_damaged_file_is_named_corrupt(path, clock, damage):
    make_rich(path, clock)
    damage_file(path, damage)
    with pytest.raises(JournalCorrupt, match=r"journal\.sqlite"):
        Journal(path, clock)
    if damage != "flipped":  # which reading other pages does not meet
        with pytest.raises(JournalCorrupt, match=r"journal\.sqlite"):
            read_accounts(path)


def test_a_damaged_journal_goes_on_from_its_backup_and_says_so(journal, path, clock, caplog):
    caplog.set_level("INFO")
    draw_one(journal, 1)
    journal.backup()
    forgotten = [journal.next_sequence() for _ in range(5)]
    assert draw_one(journal, 41) == 0
    journal.close()
    damage_file(path, "garbage")
    for file in (path, backup_path(path)):
        os.utime(file, (START, START))
    wait(clock, 1.0)

    journal, notes = open_or_restore(path, clock)
    assert "not a database" in notes[0]
    assert backup_path(path).name in notes[1]
    assert "backup" in caplog.text
    (aside,) = path.parent.glob("*.corrupt-*")
    assert aside.name in notes[1]
    assert journal.next_sequence() > max(forgotten)
    assert journal.restored_at == START + 1
    drawn = [draw_one(journal, epoch) for epoch in (41, 40, 42)]
    assert drawn == [None, None, 0], "the running epoch is left alone"


@pytest.mark.parametrize("backup", [None, b"not a database at all" * 100])
def test_without_a_usable_backup_a_damaged_journal_starts_anew_and_says_so(path, clock, backup):
    make_rich(path, clock)
    damage_file(path, "garbage")
    if backup:
        backup_path(path).write_bytes(backup)
    journal, notes = open_or_restore(path, clock)
    assert "started empty" in notes[1]
    assert draw_one(journal, 1) is None
    assert journal.next_sequence() == int(START * 1000)


def test_a_backup_is_whole_while_others_write(journal, clock) -> None:
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


def test_a_journal_of_a_newer_program_is_left_alone_and_a_missing_folder_named(path, clock):
    make_rich(path, clock)
    for layout in (99, VERSION + 1):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version={layout}")
        match = rf"layout {layout}.*knows {VERSION}.*update swarm-node"
        with pytest.raises(JournalError, match=match) as caught:
            open_or_restore(path, clock)
        assert not isinstance(caught.value, JournalCorrupt)
    with pytest.raises(JournalError, match="run folder exists and is writable"):
        Journal(path.parent / "nowhere" / "journal.sqlite", clock)


def test_a_journal_in_use_by_another_process_is_named(journal, path, monkeypatch) -> None:
    monkeypatch.setattr(journal_module, "BUSY_SECONDS", 0.01)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="stop the other process"):
        journal.next_sequence()
    other.execute("ROLLBACK")
    assert journal.next_sequence()


def test_a_full_disk_is_a_clear_error_and_loses_nothing(path, clock):
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
                        (stored.to_bytes(8, "big"), bytes(20_000)),
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
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    first, second = done.stdout.splitlines()
    assert "free some space" in first and "free some space" in second
    stored = int(first.split()[0])
    assert stored > 0
    for file in (path, backup_path(path)):
        assert draw_one(Journal(file, clock), 1) == 1
    assert Journal(path, clock).read("SELECT count(*) FROM frames") == [(stored,)]


def make_rich(path: Path, clock: VirtualClock) -> None:
    """A journal of many pages, closed, so that nothing is left in its write-ahead log."""
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


def test_a_journal_is_tied_to_the_first_identity_that_claims_it(path, clock):
    anna, ben = bytes([1]) * 32, bytes([2]) * 32
    with closing(Journal(path, clock)) as journal:
        assert journal.claim("identity", anna) and journal.claim("identity", anna)
        assert journal.claim("swarm", ben), "each thing is claimed for itself"
    with closing(Journal(path, clock)) as journal:
        assert not journal.claim("identity", ben)
        assert journal.claim("identity", anna)
