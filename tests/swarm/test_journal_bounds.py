"""Journals: disk syncs, partial backups, restores, migrations and size bounds."""

import os
from contextlib import closing
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.virtual_clock import VirtualClock
from protocol.announcement import epoch_of
from swarm import journal as journal_module
from swarm.admission import AHEAD_EPOCHS, oldest_epoch
from swarm.common import util
from swarm.common.counters import Counters
from swarm.journal import LARGEST_LOG, Journal, backup_path, open_or_restore
from swarm.pool import LEAST_USES, Pool
from swarm.reputation import Accounts
from tests.swarm.admission_parts import EPOCH_SECONDS, Gate
from tests.swarm.experience_parts import START, pooled, wait

NORMAL, FULL = 1, 2
"""SQLite's sync levels: commits survive a process crash, or a machine crash."""
GARBAGE = b"garbage " * 1000


def lose(journal: Journal, path: Path, left: bytes | None = None) -> None:
    """Back up a journal, and delete its file or replace the content."""
    journal.backup()
    journal.close()
    path.unlink()
    if left is not None:
        path.write_bytes(left)


def test_durable_transaction_uses_full_sync_and_others_use_normal(journal) -> None:
    for durable, level in ((True, FULL), (False, NORMAL), (True, FULL)):
        with journal.transaction(durable=durable) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
        assert journal.read("PRAGMA synchronous") == [(level,)]
    assert journal.read("PRAGMA journal_mode") == [("wal",)], "WAL readers do not block writers"
    with journal.transaction():
        pass
    for issue in (journal.next_sequence, lambda: journal.next_indexes(1, 1, 9)):
        issue()
        assert journal.read("PRAGMA synchronous") == [(FULL,)]


def test_restore_drops_groups_that_may_have_been_used_or_shared(journal, path, clock):
    rows = {
        "pool": "VALUES (x'aa', 7, 3, 0, 1, 0, 'sums', 0, x'', 0, x'', 0)",
        "waiting": "VALUES (1, 7, x'00')",
        "begun": "VALUES (0, 7, 0, 'sums', 0, 1, 0)",
        "written": "VALUES (0, 0, 0, NULL, x'', x'', x'', NULL)",
    }
    with journal.transaction() as connection:
        for table, row in rows.items():
            connection.execute(f"INSERT INTO {table} {row}")
    lose(journal, path)
    journal, notes = open_or_restore(path, clock)
    assert "missing" in notes[0]
    for table in rows:
        assert journal.read(f"SELECT count(*) FROM {table}") == [(0,)], table


def test_restore_moves_stale_wal_and_shm_files_aside(journal, path, clock):
    journal.next_sequence()
    lose(journal, path)
    for ending in ("-wal", "-shm"):
        path.with_name(path.name + ending).write_bytes(b"of the old one")
    journal, _ = open_or_restore(path, clock)
    assert journal.next_sequence() == int(START * 1000) + 1
    aside = f"{path.name}.corrupt-{int(START * 1000)}"
    assert (path.parent / f"{aside}-wal").read_bytes() == b"of the old one"
    assert {p.name for p in path.parent.glob("*.corrupt-*")} == {f"{aside}-wal", f"{aside}-shm"}


def test_backup_replaces_a_leftover_temporary_file(journal, path, clock) -> None:
    target = backup_path(path)
    unfinished = target.with_name(target.name + ".tmp")
    unfinished.write_bytes(b"half a copy" * 1000)
    assert journal.backup() == target
    Journal(target, clock).close()
    assert not unfinished.exists()


def test_backup_syncs_file_before_rename_and_folder_after(path, clock, monkeypatch) -> None:
    journal, target, flushes = Journal(path, clock), backup_path(path), []
    note = lambda flushing: flushes.append((flushing.name, target.exists()))  # noqa: E731
    monkeypatch.setattr(util, "fsync_path", note)
    journal.backup()
    assert flushes == [(target.name + ".tmp", False), (path.parent.name, True)]


def test_backup_contains_only_the_tables_that_a_restore_needs(journal, path, clock) -> None:
    rows = {
        "draws": "(41, 7)",
        "seen": "(x'aa', 41, 3, x'00')",
        "used": "(1, x'aa', 41, 3, 9, 1)",
        "refusals": "(x'aa', 'replay', 5)",
        "frames": "(x'bb', 0, 0, 0, x'', 0, zeroblob(1000000))",
        "waiting": "(1, 41, zeroblob(1000000))",
        "pool": "(x'aa', 41, 3, 0, 1, 0, 'sums', 0, x'', 0, zeroblob(1000000), 0)",
        "begun": "(0, 41, 0, 'sums', 0, 1, 0)",
        "written": "(0, 0, 0, NULL, zeroblob(1000000), x'', x'', NULL)",
    }
    with journal.transaction() as connection:
        for table, row in rows.items():
            connection.execute(f"INSERT INTO {table} VALUES {row}")
    Accounts(journal, clock).charge(b"author", 2.5)
    journal.claim("swarm", b"digest!")
    copy = Journal(journal.backup(), clock)
    tables = {table for table in rows if copy.read(f"SELECT count(*) FROM {table}") == [(1,)]}
    assert tables == {"draws", "seen", "used", "refusals"}
    for table in {"numbers", "accounts", *tables}:
        query = f"SELECT * FROM {table}"
        assert copy.read(query) == journal.read(query), table
    assert backup_path(path).stat().st_size < 200_000 < 4_000_000 < path.stat().st_size


def test_write_ahead_log_shrinks_after_a_large_transaction(path, clock) -> None:
    log = path.with_name(f"{path.name}-wal")
    with closing(Journal(path, clock)) as journal:
        with journal.transaction() as connection:
            connection.execute("INSERT INTO waiting VALUES (1, 41, zeroblob(20000000))")
        assert log.stat().st_size > 3 * LARGEST_LOG
        for _ in range(3):
            journal.next_sequence()
        assert log.stat().st_size <= LARGEST_LOG


EPOCH = 28_333_333


def indexes(journal: Journal) -> set[int]:
    return set(journal.next_indexes(EPOCH, 8, 256))


def test_empty_journal_file_is_restored_from_its_backup(journal, path: Path) -> None:
    first = indexes(journal)
    lose(journal, path, b"")
    journal, notes = open_or_restore(path, VirtualClock())
    assert "the file is empty" in notes[0] and backup_path(path).name in notes[1]
    assert not first & indexes(journal)


@pytest.mark.parametrize("resumed_twice", [False, True])
def test_open_repeats_an_interrupted_rebuild(journal, path, monkeypatch, resumed_twice):
    first = indexes(journal)
    journal.close()
    path.write_bytes(GARBAGE)

    def abort(finished: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "replace_durably", abort)
        for _ in range(1 + resumed_twice):
            with pytest.raises(KeyboardInterrupt):
                open_or_restore(path, VirtualClock())
    assert not path.exists()
    journal, notes = open_or_restore(path, VirtualClock())
    assert "interrupted" in notes[0]
    assert not first & indexes(journal)
    journal.close()
    again, notes = open_or_restore(path, VirtualClock())
    assert notes == ()
    again.close()


def test_stale_rebuild_file_does_not_replace_a_newer_journal(journal, path: Path):
    stale = path.with_name(path.name + ".rebuilt")
    stale.write_bytes(b"")
    os.utime(stale, (START, START))
    first = indexes(journal)
    journal.close()
    journal, notes = open_or_restore(path, VirtualClock())
    assert notes == ()
    again = indexes(journal)
    assert again and not first & again


def test_restore_with_clock_behind_starts_at_the_last_write_time(journal, path):
    lose(journal, path, GARBAGE)
    os.utime(path, (START + 30, START + 30))
    os.utime(backup_path(path), (START, START))
    assert open_or_restore(path, VirtualClock(START - 3600))[0].restored_at == START + 30


@pytest.mark.parametrize("later", [0, 30])
def test_restore_with_clock_behind_repeats_no_sample_or_sequence(path, later):
    """The restore's clock is two slots before the last write; the backup is older."""
    now = SimpleNamespace(time=lambda: START)
    journal = Journal(path, now)
    os.utime(journal.backup(), (START, START))

    def slots(*numbers: int, later: int = 0) -> set[tuple[int, int]]:
        used = set()
        for slot in numbers:
            now.time = lambda at=START + 60 * slot + later: at
            used |= {(slot, index) for index in journal.next_indexes(slot, 4, 256)}
        return used

    used, sequence = slots(0, 1, 2, 3), journal.next_sequence()
    journal.close()
    path.write_bytes(GARBAGE)
    os.utime(path, (START + 190, START + 190))
    now.time = lambda: START + 60
    journal, _ = open_or_restore(path, now)
    assert journal.next_sequence() > sequence
    again = slots(1, 2, 3, 4, 5, later=later)
    assert again and not used & again


def test_restore_ignores_a_file_time_far_in_the_future(journal, path, clock):
    lose(journal, path, GARBAGE)
    os.utime(path, (START + 10 * 86_400, START + 10 * 86_400))
    journal, _ = open_or_restore(path, clock)
    assert not journal.next_indexes(EPOCH, 1, 256)
    assert journal.next_indexes(EPOCH + 1, 1, 256)
    assert journal.next_sequence() < (START + 86_400) * 1000


def test_restore_uses_the_last_sequence_if_file_times_are_older(journal, path):
    journal.next_sequence()
    lose(journal, path)
    os.utime(backup_path(path), (0, 0))
    assert open_or_restore(path, VirtualClock(START - 3600))[0].restored_at == START


ROUNDS, LOCAL, PEER = 1_250, 64, 16
USES = ROUNDS * (LOCAL + PEER)
SAVED = 25
"""Rounds between two checkpoints, which prune outdated rows."""
ROUNDS_AN_EPOCH = 12
LARGEST = 4 << 20
"""Maximum bytes of a journal with small groups, for any number of rounds."""


def test_journal_and_backup_stay_small_after_100000_uses(tmp_path: Path) -> None:
    gate, counters = Gate(tmp_path / "journal.sqlite"), Counters()
    clock, journal = gate.clock, gate.journal
    pool = Pool(journal, PEER, 60.0, clock, counters)
    accounts = Accounts(journal, clock)
    fresh, largest, trained = count(), 0, 0
    for step in range(1, ROUNDS + 1):
        epoch = epoch_of(clock.time(), EPOCH_SECONDS)
        local = [(epoch, index) for index in journal.next_indexes(epoch, LOCAL, 1 << 16)]
        now = clock.time()
        pool.add([pooled(next(fresh), epoch=epoch, received=now) for _ in range(PEER)])
        consumed = pool.consume(pool.fresh(), step)
        pool.record_update(step, local, [group.key for group in consumed])
        trained += len(local) + len(consumed)
        accounts.prove([(group.author, 1.0) for group in consumed])
        if step % ROUNDS_AN_EPOCH == 0:
            wait(clock, EPOCH_SECONDS)
        if step % SAVED == 0:
            pool.forget(oldest_epoch(gate.manifest, clock.time()))
            journal.backup()
            largest = max(largest, (tmp_path / "journal.sqlite").stat().st_size)
    assert trained == USES == 100_000
    ((uses,),) = journal.read("SELECT count(*) FROM used")
    epochs = gate.manifest.max_age_epochs + AHEAD_EPOCHS + 1
    assert uses <= LEAST_USES + (epochs * ROUNDS_AN_EPOCH * PEER)
    with closing(journal):
        copy = backup_path(tmp_path / "journal.sqlite").stat().st_size
    assert copy <= largest <= LARGEST
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) <= 2 * LARGEST + LARGEST_LOG
