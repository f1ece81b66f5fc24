"""One SQLite file that remembers, across any kill, what a node must not do twice."""

from __future__ import annotations

import logging
import shutil
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from swarm.common.clock import Clock
from swarm.common.util import make_private, replace_durably

VERSION = 1

TABLES = """
-- journal: numbers that must never be handed out twice; pool: the last forgotten epoch
CREATE TABLE numbers (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE draws (epoch INTEGER PRIMARY KEY, next INTEGER NOT NULL);

-- outbox: own groups waiting for a frame, and sealed frames as they are served
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY AUTOINCREMENT, epoch INTEGER NOT NULL, plain BLOB NOT NULL
);
CREATE TABLE frames (
    content_id BLOB PRIMARY KEY, created REAL NOT NULL, size INTEGER NOT NULL,
    groups INTEGER NOT NULL, env_digest BLOB NOT NULL, informative INTEGER NOT NULL,
    frame BLOB NOT NULL
);
CREATE INDEX frames_created ON frames (created);

-- admission: every draw of an external author that was looked at
CREATE TABLE seen (
    author BLOB, epoch INTEGER, number INTEGER, digest BLOB NOT NULL,
    PRIMARY KEY (author, epoch, number)
) WITHOUT ROWID;
CREATE INDEX seen_epoch ON seen (epoch);

-- pool: admitted groups that may still be used, and in how many updates they were
CREATE TABLE pool (
    author BLOB, epoch INTEGER, number INTEGER, received REAL NOT NULL,
    informative INTEGER NOT NULL, size INTEGER NOT NULL, env TEXT NOT NULL,
    level INTEGER NOT NULL, rewards BLOB NOT NULL, policy_step INTEGER NOT NULL,
    contents BLOB NOT NULL, uses INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (author, epoch, number)
);

-- accounts: what each author sent, took and got wrong
CREATE TABLE accounts (
    author BLOB PRIMARY KEY, bytes_in INTEGER NOT NULL, bytes_out INTEGER NOT NULL,
    admitted INTEGER NOT NULL, strikes REAL NOT NULL, struck_at REAL NOT NULL,
    barred INTEGER NOT NULL, touched REAL NOT NULL,
    earned REAL NOT NULL DEFAULT 0, earned_at REAL NOT NULL DEFAULT 0,
    seconds REAL NOT NULL DEFAULT 0, admitted_at REAL NOT NULL DEFAULT 0
);
CREATE TABLE refusals (
    author BLOB, reason TEXT, n INTEGER NOT NULL, PRIMARY KEY (author, reason)
) WITHOUT ROWID;

-- pool: which update used which group, a row a use; own groups have author x''
CREATE TABLE used (
    use INTEGER PRIMARY KEY, author BLOB NOT NULL, epoch INTEGER NOT NULL,
    number INTEGER NOT NULL, step INTEGER NOT NULL, trained INTEGER NOT NULL
);
CREATE INDEX used_key ON used (author, epoch, number);
CREATE INDEX used_step ON used (step);

-- unfinished: own groups begun that no update has used, and what is written of their completions
CREATE TABLE begun (
    ticket INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, number INTEGER NOT NULL,
    env TEXT NOT NULL, level INTEGER NOT NULL, seed INTEGER NOT NULL, version INTEGER NOT NULL
);
CREATE TABLE written (
    ticket INTEGER, place INTEGER, turn INTEGER, finish INTEGER, ids BLOB NOT NULL,
    logprobs BLOB NOT NULL, versions BLOB NOT NULL, observation TEXT,
    PRIMARY KEY (ticket, place, turn)
) WITHOUT ROWID;
"""


def create_tables(connection: sqlite3.Connection) -> None:
    """Make the tables in a new file."""
    connection.executescript(f"BEGIN;{TABLES}PRAGMA user_version={VERSION};COMMIT;")


RESTORED = "its backup is used where there is one"

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
    """The journal cannot be used as it is; the message says what to do."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(f"journal {path}: {problem}; {remedy}")


class JournalCorrupt(JournalError):  # noqa: N818 - a finding about the file
    """The file is not a sound SQLite database."""


@contextmanager
def named_errors(path: Path | str) -> Iterator[None]:
    """Turn failures of the disk or the file into :class:`JournalError`; let bugs through."""
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


log = logging.getLogger(__name__)

MEMORY = ":memory:"
BUSY_SECONDS = 5.0
LARGEST_LOG = 4 << 20
# TaskIndexes of epochs further back are forgotten: more than any manifest's ``max_age_epochs``.
KEPT_EPOCHS = 1 << 21
# Of the last epochs drawn from none is forgotten, however far a clock runs ahead before it is put
# back: a draw of theirs used again would be two tellings of one task.
KEPT_DRAWS = 4096
_FORGET_DRAWS = """
DELETE FROM draws WHERE epoch<? AND epoch NOT IN (
    SELECT epoch FROM draws ORDER BY epoch DESC LIMIT ?
)
"""

# What must hold beyond the loss of the file; the rest is groups and frames on their way.
KEPT_TABLES = ("numbers", "draws", "seen", "used", "accounts", "refusals")

_SEQUENCE = "last_sequence"
_RESTORED = "restored_ms"
_VOID = "void_epoch"
_UNDECIDED = -1


class Journal:
    """Storage shared by outbox, pool, accounts and admission; safe from several threads.

    Every write happens in a :meth:`transaction`. A committed one survives the death of the
    process; a ``durable`` one also survives the death of the machine.

    Args:
        path: the file, made when missing, or ``":memory:"``.
        clock: source of the millisecond that sequence numbers start from.

    Raises:
        JournalCorrupt: the file fails SQLite's quick check.
        JournalError: it cannot be opened, is full, is in use or was written by a newer version.
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
        # Else the file beside it keeps the size of the largest transaction that there ever was.
        self._connection.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
        findings = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if findings != ("ok",):
            raise JournalCorrupt(self.path, f"quick check says {findings[0]!r}", RESTORED)
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, VERSION):
            raise JournalError(
                self.path,
                f"has layout {version}, this program knows {VERSION}",
                "update swarm-node or use another run folder",
            )
        if version == 0:
            create_tables(self._connection)

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Hold the journal for a block of statements that happen together or not at all.

        Transactions do not nest; other threads wait. With ``durable`` the block ends only when
        its changes are on the disk (SQLite's ``synchronous=FULL``).

        Raises:
            JournalError: the disk is full or the file unusable; nothing was changed.
        """
        with self._lock, named_errors(self.path):
            level = "FULL" if durable else "NORMAL"
            self._connection.execute(f"PRAGMA synchronous={level}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite may have rolled back by itself, as it does when the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def read(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that ``query`` selects.

        Raises:
            JournalError: the file is unusable.
        """
        with self._lock, named_errors(self.path):
            return self._connection.execute(query, parameters).fetchall()

    def claim(self, what: str, digest: bytes) -> bool:
        """Tie the journal to one ``digest`` for good; False where it is tied to another.

        What is remembered here, such as sealed frames and draws, holds for one identity in one
        swarm only.
        """
        name, ours = f"claimed_{what}", int.from_bytes(digest[:7])
        with self.transaction(durable=True) as connection:
            theirs = _number(connection, name, None)
            if theirs is None:
                _set_number(connection, name, ours)
        return theirs in (None, ours)

    def next_sequence(self) -> int:
        """A number larger than every one before it, on the disk before it is returned.

        It starts at the clock's millisecond, so that a node whose journal was lost goes on above
        all that it used.
        """
        with self.transaction(durable=True) as connection:
            last = _number(connection, _SEQUENCE, -1)
            sequence: int = max(last + 1, int(self._clock.time() * 1000))
            _set_number(connection, _SEQUENCE, sequence)
        return sequence

    def next_indexes(self, epoch: int, count: int, limit: int) -> range:
        """The next unused draws of ``epoch``, below ``limit``; on the disk before they are out.

        Fewer than ``count`` where the epoch has no more. A restored journal may have forgotten
        draws of the epoch it is first asked for, so that whole epoch counts as used.
        """
        with self.transaction(durable=True) as connection:
            void = _number(connection, _VOID, None)
            if void == _UNDECIDED:
                void = epoch
                _set_number(connection, _VOID, epoch)
            if void is not None and epoch <= void:
                return range(0)
            row = connection.execute("SELECT next FROM draws WHERE epoch=?", (epoch,)).fetchone()
            first: int = row[0] if row else 0
            drawn = range(first, max(first, min(first + count, limit)))
            connection.execute("REPLACE INTO draws VALUES (?, ?)", (epoch, drawn.stop))
            if not row:
                connection.execute(_FORGET_DRAWS, (epoch - KEPT_EPOCHS, KEPT_DRAWS))
        return drawn

    @property
    def restored_at(self) -> float | None:
        """Unix time at which this journal was last rebuilt; None for one that never was.

        What was trained on shortly before that may be forgotten.
        """
        with self._lock, named_errors(self.path):
            milliseconds = _number(self._connection, _RESTORED, None)
        return None if milliseconds is None else milliseconds / 1000

    def backup(self, target: Path | None = None) -> Path:
        """Copy what a restored journal needs; the previous copy stays until this one is whole.

        Groups and frames are not in it: a restored journal could not tell which groups were used
        since, and the next epoch has frames of its own.

        Args:
            target: the copy; beside the journal when None.

        Raises:
            JournalError: the disk is full or the folder cannot be written.
        """
        target = target or backup_path(Path(self.path))
        unfinished = target.with_name(target.name + ".tmp")
        with self._lock, named_errors(target):
            unfinished.unlink(missing_ok=True)
            make_private(unfinished)
            copy = sqlite3.connect(unfinished)
            try:
                create_tables(copy)
            finally:
                copy.close()
            self._copy_into(unfinished)
            replace_durably(unfinished, target)
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
        """Release the file; using the journal afterwards is an error."""
        with self._lock:
            self._connection.close()

    def forget_recent(self, spoiled: float) -> None:
        """Drop what this copy may wrongly believe to be unused, at the price of losing it.

        Args:
            spoiled: unix time at which the file that was lost may last have been written.
        """
        with self.transaction(durable=True) as connection:
            for table in ("pool", "waiting", "begun", "written"):
                connection.execute(f"DELETE FROM {table}")
            _set_number(connection, _VOID, _UNDECIDED)
            last = _number(connection, _SEQUENCE, 0)
            _set_number(connection, _RESTORED, max(last, int(spoiled * 1000)))


def backup_path(path: Path) -> Path:
    """Where the copy of the journal at ``path`` lies unless told otherwise."""
    return path.with_name(path.name + ".backup")


def _number(connection: sqlite3.Connection, name: str, default: int | None) -> Any:
    row = connection.execute("SELECT value FROM numbers WHERE name=?", (name,)).fetchone()
    return row[0] if row else default


def _set_number(connection: sqlite3.Connection, name: str, value: int) -> None:
    connection.execute("REPLACE INTO numbers VALUES (?, ?)", (name, value))


ASIDE = "corrupt-"
"""In the name of a journal that was moved aside, before the millisecond."""


def open_or_restore(
    path: Path, clock: Clock, backup: Path | None = None
) -> tuple[Journal, tuple[str, ...]]:
    """Open the journal, or put it together again from its backup.

    A corrupt file is moved aside, never deleted. A rebuilt journal gives up what it cannot be
    sure about: pooled, waiting and begun groups are dropped, the running epoch is not drawn from,
    and :attr:`Journal.restored_at` tells admission which external groups may have been used before.

    Returns:
        The journal, and what happened in sentences for people (empty where nothing did).

    Raises:
        JournalError: it can be neither opened nor rebuilt.
    """
    backup = backup or backup_path(path)
    # To open a file may write to it, and where a power cut spoiled it the clock may be behind.
    spoiled = max(clock.time(), _last_written(path, backup))
    lost = _lost(path, backup)
    if lost:
        notes = [f"journal {path}: {lost}"]
    else:
        try:
            return Journal(path, clock), ()
        except JournalCorrupt as corrupt:
            notes = [f"{corrupt}"]
    with named_errors(path):
        notes.append(_rebuild(path, clock, backup, spoiled))
    for note in notes:
        log.info(note)
    return Journal(path, clock), tuple(notes)


def _lost(path: Path, backup: Path) -> str:
    """What became of the journal that was here; empty where none was, or one still is.

    A power cut may leave an empty file. Without a backup only what a rebuilding that was cut short
    leaves tells that there was one; what it left before a journal that was written to since is old.
    """
    rebuilt = _rebuilt(path)
    if rebuilt.exists() and not (path.exists() and path.stat().st_mtime > rebuilt.stat().st_mtime):
        return "an earlier rebuilding was cut short"
    if path.exists() and (path.stat().st_size or not backup.exists()):
        return ""
    if backup.exists() or any(path.parent.glob(f"{path.name}.{ASIDE}*")):
        return "the file is empty" if path.exists() else "the file is missing"
    return ""


def _rebuilt(path: Path) -> Path:
    return path.with_name(path.name + ".rebuilt")


def _last_written(path: Path, backup: Path) -> float:
    """Unix time up to which the files of a journal tell that it was in use."""
    files = [path, backup, path.with_name(path.name + "-wal")]
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _rebuild(path: Path, clock: Clock, backup: Path, spoiled: float) -> str:
    """Put a new journal in the place of the one at ``path``; says from what it was made."""
    rebuilt = _rebuilt(path)
    source = "started anew, as there is no backup"
    rebuilt.unlink(missing_ok=True)
    if backup.exists():
        make_private(rebuilt)
        shutil.copyfile(backup, rebuilt)
        source = f"went on from the backup {backup.name}"
    try:
        journal = Journal(rebuilt, clock)
    except JournalCorrupt:
        rebuilt.unlink()
        source = f"started anew, as the backup {backup.name} is corrupt too"
        journal = Journal(rebuilt, clock)
    journal.forget_recent(spoiled)
    journal.close()
    aside = path.with_name(f"{path.name}.{ASIDE}{int(clock.time() * 1000)}")
    for ending in ("-wal", "-shm", ""):
        with suppress(FileNotFoundError):
            path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
    replace_durably(rebuilt, path)
    kept = f"; the old file is kept as {aside.name}" if aside.exists() else ""
    return f"journal {path}: {source}{kept}"
