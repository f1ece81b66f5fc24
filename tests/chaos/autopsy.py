"""Reading a node's run folder: beside the living, and all of it of the dead."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHECKPOINT = re.compile(r"step-(\d{8,})")


@dataclass(frozen=True, slots=True)
class Remains:
    """What a process that ended has left in its journal and beside it.

    Attributes:
        sequence: the last number that it can have used; -1 for none.
        last_use: the last row that notes a use.
        records: whole lines of metrics.jsonl.
        checkpoint: round and policy step of the newest one; zeros without any.
        sound: what SQLite finds, ``ok`` or the fault.
        frames: content ids of what it serves.
        drawn: the next index of each epoch.
    """

    sequence: int
    last_use: int
    records: int
    checkpoint: tuple[int, int]
    sound: str
    frames: tuple[bytes, ...]
    drawn: tuple[tuple[int, int], ...]


def autopsy(folder: Path) -> Remains:
    """Look at a run folder whose process is dead, in a copy, so that nothing is repaired by it."""
    with tempfile.TemporaryDirectory() as scratch:
        for part in folder.glob("journal.sqlite*"):
            if part.suffix != ".backup":
                shutil.copy(part, scratch)
        journal = Path(scratch) / "journal.sqlite"
        if not journal.exists():
            return Remains(-1, 0, _lines(folder), newest_checkpoint(folder), "ok", (), ())
        with closing(sqlite3.connect(journal)) as connection:
            return _remains(folder, connection)


def _remains(folder: Path, connection: sqlite3.Connection) -> Remains:
    def one(query: str, default: Any) -> Any:
        row = connection.execute(query).fetchone()
        return default if row is None or row[0] is None else row[0]

    sound = "; ".join(str(row[0]) for row in connection.execute("PRAGMA integrity_check"))
    if not one("SELECT count(*) FROM sqlite_master WHERE name='numbers'", 0):
        return Remains(-1, 0, _lines(folder), newest_checkpoint(folder), sound, (), ())
    if aside := [path.name for path in folder.glob("journal.sqlite.corrupt-*")]:
        sound = f"put together again: {', '.join(aside)}"
    return Remains(
        one("SELECT value FROM numbers WHERE name='last_sequence'", -1),
        one("SELECT max(use) FROM used", 0),
        _lines(folder),
        newest_checkpoint(folder),
        sound,
        tuple(row[0] for row in connection.execute("SELECT content_id FROM frames")),
        tuple(connection.execute("SELECT epoch, next FROM draws ORDER BY epoch DESC LIMIT 200")),
    )


def newest_checkpoint(folder: Path) -> tuple[int, int]:
    """Round and policy step of the checkpoint that a node would go on from."""
    found = (folder / "checkpoints").glob("step-*")
    named = [path for path in found if _CHECKPOINT.fullmatch(path.name)]
    if not named:
        return 0, 0
    state = json.loads((max(named) / "state.json").read_text())
    return int(state["round"]), int(state["policy_step"])


def _lines(folder: Path) -> int:
    path = folder / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@contextmanager
def beside(folder: Path) -> Iterator[sqlite3.Connection]:
    """The journal of a node that may be running, for short looks.

    Raises:
        sqlite3.OperationalError: there is none yet, or none that can be read now.
    """
    where = f"file:{folder / 'journal.sqlite'}?mode=ro"
    with closing(sqlite3.connect(where, uri=True, timeout=0.2)) as connection:
        yield connection


def admitted_from(connection: sqlite3.Connection, authors: Iterable[bytes]) -> int:
    """Groups of these authors that were admitted so far."""
    wanted = list(authors)
    places = ", ".join("?" * len(wanted))
    query = f"SELECT total(admitted) FROM accounts WHERE author IN ({places})"
    return int(connection.execute(query, wanted).fetchone()[0])
