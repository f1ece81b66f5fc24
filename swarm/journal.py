"""One SQLite file that records, across crashes, what a node must not do twice."""

from __future__ import annotations

import logging
import re
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from swarm.common.clock import Clock
from swarm.common.util import make_private, replace_durably

log = logging.getLogger(__name__)

VERSION = 1
TABLES = Path(__file__).with_name("journal.sql").read_text(encoding="utf-8")


def create_tables(connection: sqlite3.Connection) -> None:
    """Create the tables in a new file."""
    connection.executescript(f"BEGIN;{TABLES}PRAGMA user_version={VERSION};COMMIT;")


MEMORY = ":memory:"
BUSY_SECONDS = 5.0
LARGEST_LOG = 4 << 20
CLOCK_ERROR = 86_400.0  # seconds from now after which a file's time shows a wrong clock
KEPT_EPOCHS = 1 << 21  # of sample indexes; more than any manifest's ``max_age_epochs``
KEPT_DRAWS = 4096  # latest slots always kept, or a clock set back could reuse a sample index
_FORGET_DRAWS = """
DELETE FROM draws WHERE epoch<? AND epoch NOT IN (
    SELECT epoch FROM draws ORDER BY epoch DESC LIMIT ?
)
"""
# Tables that must survive the loss of the file; the others hold groups and frames in transit.
KEPT_TABLES = ("numbers", "draws", "seen", "used", "accounts", "refusals")
ASIDE = "corrupt-"  # in the name of a journal that was moved aside, before the millisecond

_BLANKS = re.compile(r"(?:--[^\n]*|\s)+")  # in a table's definition, with comments

_SEQUENCE = "last_sequence"
_RESTORED = "restored_ms"
_VOID = "void_epoch"
_UNDECIDED = -1

RESTORED = "the node uses its backup if there is one"
_CORRUPT = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_REMEDIES = {
    sqlite3.SQLITE_FULL: "free some space and start again",
    sqlite3.SQLITE_IOERR: "free some space and check the disk, then start again",
    sqlite3.SQLITE_BUSY: "stop the other process that uses this run folder",
    sqlite3.SQLITE_LOCKED: "stop the other process that uses this run folder",
    sqlite3.SQLITE_READONLY: "make the run folder writable",
    sqlite3.SQLITE_CANTOPEN: "make sure that the run folder exists and is writable",
    sqlite3.SQLITE_PERM: "make the run folder writable",
}


class JournalError(Exception):
    """A journal that cannot be used as it is; the message says what to do."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(f"journal {path}: {problem}; {remedy}")


class JournalCorrupt(JournalError):  # noqa: N818 - a finding about the file
    """A file that is not a sound SQLite database with the tables of a journal."""


def check_layout(connection: sqlite3.Connection, path: Path | str) -> None:
    """Raise JournalError for another version's file, JournalCorrupt for one with other tables.

    Views, triggers and constraints of a file from elsewhere could run for ever.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        problem = f"has layout {version}, this program knows {VERSION}"
        raise JournalError(path, problem, "update swarm-node or use another run folder")
    with closing(sqlite3.connect(MEMORY)) as reference:
        create_tables(reference)
        if _layout(connection) != _layout(reference):
            raise JournalCorrupt(path, "its tables are not those of a journal", RESTORED)


def _layout(connection: sqlite3.Connection) -> list[tuple[str, ...]]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name")
    return [(kind, name, _BLANKS.sub(" ", sql or "")) for kind, name, sql in rows]


@contextmanager
def named_errors(path: Path | str) -> Iterator[None]:
    """Turn disk and file failures into :class:`JournalError`; pass bugs through."""
    try:
        yield
    except sqlite3.Error as error:
        # The low byte is the primary result code (https://sqlite.org/rescode.html).
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _CORRUPT:
            raise JournalCorrupt(path, str(error), RESTORED) from error
        if code in _REMEDIES:
            raise JournalError(path, str(error), _REMEDIES[code]) from error
        raise
    except OSError as error:
        problem = error.strerror or str(error)
        raise JournalError(path, problem, "check the disk and the run folder") from error


class Journal:
    """Thread-safe storage of outbox, replay buffer, accounts and admission.

    Every write happens in a :meth:`transaction`. A committed one survives a crash of the process; a
    ``durable`` one also survives a crash of the machine. ``path`` is created if missing, or
    ``":memory:"``. Raises ``JournalCorrupt`` if SQLite's quick check fails, and ``JournalError`` if
    the file cannot be opened, is full, is in use or has another version's layout.
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        with named_errors(path):
            if path != MEMORY:
                make_private(Path(path))
            self._connection = sqlite3.connect(
                path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def _prepare(self) -> None:
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA fullfsync=ON")  # of macOS; no other system has it
        # Otherwise the WAL file keeps the size of the largest transaction ever.
        self._connection.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
        if not _layout(self._connection):
            create_tables(self._connection)
        check_layout(self._connection, self.path)
        findings = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if findings != ("ok",):
            raise JournalCorrupt(self.path, f"quick check reports {findings[0]!r}", RESTORED)

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block of statements as one atomic transaction, not nested.

        With ``durable`` it ends after its changes are on disk. ``JournalError`` means no change.
        """
        with self._lock, named_errors(self.path):
            self._connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back already, for example when the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows that ``query`` selects; raise JournalError if the file fails."""
        with self._lock, named_errors(self.path):
            return self._connection.execute(query, parameters).fetchall()

    def claim(self, what: str, digest: bytes) -> bool:
        """Bind the journal to an identity or swarm; return False if bound to another."""
        name, value = f"claimed_{what}", int.from_bytes(digest[:7])
        with self.transaction(durable=True) as connection:
            stored = number(connection, name, None)
            if stored is None:
                set_number(connection, name, value)
        return stored in (None, value)

    def next_sequence(self) -> int:
        """Return a number larger than every earlier one, after writing it to disk.

        It starts at the clock's millisecond, so it also increases after the loss of a journal.
        """
        with self.transaction(durable=True) as connection:
            last = number(connection, _SEQUENCE, -1)
            sequence: int = max(last + 1, int(self._clock.time() * 1000))
            set_number(connection, _SEQUENCE, sequence)
        return sequence

    def next_indexes(self, epoch: int, count: int, limit: int) -> range:
        """Return unused sample indexes of ``epoch``, below ``limit``, marked on disk.

        There are fewer than ``count`` if the slot has no more. A restored journal may lack indexes,
        so slots count as used up to the first one after the original's last write.
        """
        with self.transaction(durable=True) as connection:
            void_epoch = self._void_epoch(connection, epoch)
            if void_epoch is not None and epoch <= void_epoch:
                return range(0)
            row = connection.execute("SELECT next FROM draws WHERE epoch=?", (epoch,)).fetchone()
            first: int = row[0] if row else 0
            indexes = range(first, max(first, min(first + count, limit)))
            connection.execute("REPLACE INTO draws VALUES (?, ?)", (epoch, indexes.stop))
            if not row:
                connection.execute(_FORGET_DRAWS, (epoch - KEPT_EPOCHS, KEPT_DRAWS))
        return indexes

    def _void_epoch(self, connection: sqlite3.Connection, epoch: int) -> int | None:
        """Return the last slot of which a restored journal may lack indexes; None if it is sound.

        All slots count while the clock is behind the original's last write, and the first one then.
        """
        void_epoch = number(connection, _VOID, None)
        if void_epoch == _UNDECIDED:
            skew = number(connection, _RESTORED, 0) / 1000 - self._clock.time()
            if 0.0 < skew < CLOCK_ERROR:
                return epoch
            set_number(connection, _VOID, epoch)
            return epoch
        return None if void_epoch is None else int(void_epoch)

    @property
    def restored_at(self) -> float | None:
        """Unix time of the last rebuild, or None; uses shortly before it may be lost."""
        with self._lock, named_errors(self.path):
            milliseconds = number(self._connection, _RESTORED, None)
        return None if milliseconds is None else milliseconds / 1000

    def backup(self) -> Path:
        """Copy what a restored journal needs to a file beside the journal; return its path.

        The previous copy stays until this one is complete. Groups and frames are not copied: a
        restored journal could not know which groups were used since.
        """
        target = backup_path(Path(self.path))
        temp_path = target.with_name(target.name + ".tmp")
        with self._lock, named_errors(target):
            temp_path.unlink(missing_ok=True)
            make_private(temp_path)
            with closing(sqlite3.connect(temp_path)) as connection:
                create_tables(connection)
            self._copy_into(temp_path)
            replace_durably(temp_path, target)
        return target

    def _copy_into(self, target: Path) -> None:
        self._connection.execute("ATTACH ? AS copy", (str(target),))
        try:
            with self.transaction() as connection:
                for table in KEPT_TABLES:
                    connection.execute(f"INSERT INTO copy.{table} SELECT * FROM main.{table}")
        finally:
            self._connection.execute("DETACH copy")

    def close(self) -> None:
        """Release the file; the journal cannot be used afterwards."""
        with self._lock:
            self._connection.close()

    def forget_recent(self, spoiled: float) -> None:
        """Drop what may wrongly count as unused; ``spoiled`` is the original's last write."""
        with self.transaction(durable=True) as connection:
            for table in ("pool", "waiting", "begun", "written"):
                connection.execute(f"DELETE FROM {table}")
            set_number(connection, _VOID, _UNDECIDED)
            last = max(number(connection, _SEQUENCE, 0), int(spoiled * 1000))
            set_number(connection, _RESTORED, last)
            if last / 1000 - self._clock.time() < CLOCK_ERROR:
                set_number(connection, _SEQUENCE, last + 1000)  # the times of files are coarse


def backup_path(path: Path) -> Path:
    """Return the path of the copy of the journal at ``path``."""
    return path.with_name(path.name + ".backup")


def number(connection: sqlite3.Connection, name: str, default: int | None) -> Any:
    """Return a number of the journal by name, or the default."""
    row = connection.execute("SELECT value FROM numbers WHERE name=?", (name,)).fetchone()
    return row[0] if row else default


def set_number(connection: sqlite3.Connection, name: str, value: int) -> None:
    """Store a number of the journal by name."""
    connection.execute("REPLACE INTO numbers VALUES (?, ?)", (name, value))


def open_or_restore(path: Path, clock: Clock) -> tuple[Journal, tuple[str, ...]]:
    """Open the journal, or rebuild it from its backup; also return what happened, for people.

    A corrupt file is moved aside, never deleted. A rebuilt journal has no buffered, queued or
    unfinished groups, because their state is unknown. It takes no samples from the current time
    slot. With :attr:`Journal.restored_at`, admission knows which peer groups may have been used
    before. Raises ``JournalError`` if it can be neither opened nor rebuilt.
    """
    backup = backup_path(path)
    # Opening may write, and the clock may be behind after a power failure: use file times too.
    last_write = max(clock.time(), _last_written(path, backup))
    loss = _lost(path, backup)
    if loss:
        notes = [f"journal {path}: {loss}"]
    else:
        try:
            return Journal(path, clock), ()
        except JournalCorrupt as error:
            notes = [f"{error}"]
    with named_errors(path):
        notes.append(_rebuild(path, clock, backup, last_write))
    for note in notes:
        log.info(note)
    return Journal(path, clock), tuple(notes)


def _lost(path: Path, backup: Path) -> str:
    """Return what happened to a lost journal; empty if none was lost.

    Without a backup, only recent remains of an interrupted rebuild show that there was one.
    """
    rebuild = _rebuilt(path)
    if rebuild.exists() and not (path.exists() and path.stat().st_mtime > rebuild.stat().st_mtime):
        return "an earlier recovery was interrupted"
    if path.exists() and (path.stat().st_size or not backup.exists()):
        return ""
    if backup.exists() or any(path.parent.glob(f"{path.name}.{ASIDE}*")):
        return "the file is empty" if path.exists() else "the file is missing"
    return ""


def _rebuilt(path: Path) -> Path:
    return path.with_name(path.name + ".rebuilt")


def _last_written(path: Path, backup: Path) -> float:
    files = [path, backup, path.with_name(path.name + "-wal")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _rebuild(path: Path, clock: Clock, backup: Path, last_write: float) -> str:
    rebuild = _rebuilt(path)
    outcome = "started empty, as there is no backup"
    rebuild.unlink(missing_ok=True)
    if backup.exists():
        make_private(rebuild)
        shutil.copyfile(backup, rebuild)
        outcome = f"recovered from the backup {backup.name}"
    try:
        journal = Journal(rebuild, clock)
    except JournalCorrupt:
        rebuild.unlink()
        outcome = f"started empty, as the backup {backup.name} is corrupt too"
        journal = Journal(rebuild, clock)
    journal.forget_recent(last_write)
    journal.close()
    old_path = path.with_name(f"{path.name}.{ASIDE}{int(clock.time() * 1000)}")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(old_path.with_name(old_path.name + ending))
    replace_durably(rebuild, path)
    note = f"; the old file is kept as {old_path.name}" if old_path.exists() else ""
    return f"journal {path}: {outcome}{note}"
