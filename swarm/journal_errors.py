"""What can be wrong with a journal, in words a person can act on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
