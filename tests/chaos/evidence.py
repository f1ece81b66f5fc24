"""What a run left behind, in one SQLite file: the material of :mod:`tests.chaos.checks`."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TABLES = """
CREATE TABLE IF NOT EXISTS nodes (name TEXT PRIMARY KEY, author BLOB, side INTEGER);
CREATE TABLE IF NOT EXISTS events (at REAL, kind TEXT, node TEXT, detail TEXT, outcome TEXT);
CREATE TABLE IF NOT EXISTS announcements (
    author BLOB, sequence INTEGER, digest BLOB, heard REAL, record BLOB,
    PRIMARY KEY (author, sequence, digest)
);
CREATE TABLE IF NOT EXISTS offers (
    author BLOB, content_id BLOB, heard REAL, PRIMARY KEY (author, content_id)
);
CREATE TABLE IF NOT EXISTS frames (content_id BLOB PRIMARY KEY, frame BLOB);
CREATE TABLE IF NOT EXISTS pulls (author BLOB, content_id BLOB, outcome TEXT, at REAL);
CREATE TABLE IF NOT EXISTS uses (
    node TEXT, use INTEGER, author BLOB, epoch INTEGER, number INTEGER, PRIMARY KEY (node, use)
);
CREATE TABLE IF NOT EXISTS lives (
    node TEXT, life INTEGER, began REAL, ended REAL, how TEXT, status INTEGER, sequence INTEGER,
    last_use INTEGER, records INTEGER, checkpoint_round INTEGER, checkpoint_step INTEGER,
    sound TEXT, PRIMARY KEY (node, life)
);
CREATE TABLE IF NOT EXISTS held (node TEXT, life INTEGER, content_id BLOB);
CREATE TABLE IF NOT EXISTS drawn (node TEXT, life INTEGER, epoch INTEGER, next INTEGER);
CREATE TABLE IF NOT EXISTS samples (
    at REAL, node TEXT, age REAL, memory REAL, fds INTEGER, sockets INTEGER, threads INTEGER,
    folder REAL, records REAL
);
CREATE TABLE IF NOT EXISTS machine (
    at REAL, lost INTEGER, sockets INTEGER, daemons INTEGER, tmp INTEGER
);
CREATE TABLE IF NOT EXISTS heals (at REAL, node TEXT, seconds REAL, usual REAL);
"""

HEARD = ("announcements", "offers", "frames", "pulls")
"""Tables that listeners fill."""


class Evidence:
    """One file, written by one process from any of its threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        self._connection.executescript(TABLES)

    def add(self, table: str, *rows: Iterable[Any]) -> None:
        """Insert rows; those that are there already stay as they are."""
        values = [tuple(row) for row in rows]
        if not values:
            return
        places = ", ".join("?" * len(values[0]))
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", values)
            self._connection.execute("COMMIT")

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that a query selects."""
        with self._lock:
            return self._connection.execute(query, tuple(parameters)).fetchall()

    def merge(self, path: Path) -> None:
        """Take over what a listener heard."""
        with self._lock:
            self._connection.execute("ATTACH ? AS other", (str(path),))
            for table in HEARD:
                self._connection.execute(
                    f"INSERT OR IGNORE INTO {table} SELECT * FROM other.{table}"
                )
            self._connection.execute("DETACH other")

    def close(self) -> None:
        """Release the file."""
        self._connection.close()
