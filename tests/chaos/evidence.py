"""Evidence of a run, collected from live and ended nodes in one SQLite file."""

import json
import os
import re
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.crew import ChaosNode

HARVEST_SECONDS = 3.0
SAMPLE_SECONDS = 10.0
LOST_SECONDS = 60.0
"""Seconds without a node after which a process is lost: children end later."""
MIB = float(1 << 20)
TABLES = {
    "nodes": "name TEXT PRIMARY KEY, author BLOB, side INTEGER",
    "events": "at REAL, kind TEXT, node TEXT, detail TEXT, outcome TEXT",
    "announcements": "author BLOB, sequence INTEGER, digest BLOB, heard REAL, record BLOB, "
    "PRIMARY KEY (author, sequence, digest)",
    "offers": "author BLOB, content_id BLOB, heard REAL, PRIMARY KEY (author, content_id)",
    "frames": "content_id BLOB PRIMARY KEY, frame BLOB",
    "pulls": "author BLOB, content_id BLOB, outcome TEXT, at REAL",
    "uses": "node TEXT, use INTEGER, author BLOB, epoch INTEGER, number INTEGER, "
    "PRIMARY KEY (node, use)",
    "lives": "node TEXT, life INTEGER, began REAL, ended REAL, how TEXT, status INTEGER, "
    "sequence INTEGER, last_use INTEGER, records INTEGER, checkpoint_round INTEGER, "
    "checkpoint_step INTEGER, sound TEXT, PRIMARY KEY (node, life)",
    "held": "node TEXT, life INTEGER, content_id BLOB",
    "drawn": "node TEXT, life INTEGER, epoch INTEGER, next INTEGER",
    "samples": "at REAL, node TEXT, age REAL, memory REAL, fds INTEGER, sockets INTEGER, "
    "threads INTEGER, folder REAL, records REAL",
    "machine": "at REAL, lost INTEGER, sockets INTEGER, daemons INTEGER, tmp INTEGER",
    "heals": "at REAL, node TEXT, seconds REAL, usual REAL",
}
HEARD = ("announcements", "offers", "frames", "pulls")
"""Tables that the listeners fill."""


class Evidence:
    """One file, written by one process from any of its threads."""

    def __init__(self, path: Path) -> None:
        self._lock = threading.Lock()
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=OFF")
        for name, columns in TABLES.items():
            self._connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")

    def add(self, table: str, *rows: tuple[Any, ...]) -> None:
        if not rows:
            return
        places = ", ".join("?" * len(rows[0]))
        with self._lock:
            self._connection.execute("BEGIN")
            self._connection.executemany(f"INSERT OR IGNORE INTO {table} VALUES ({places})", rows)
            self._connection.execute("COMMIT")

    def rows(self, query: str, parameters: Iterable[Any] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            return self._connection.execute(query, tuple(parameters)).fetchall()

    def merge(self, path: Path) -> None:
        with self._lock:
            self._connection.execute("ATTACH ? AS other", (str(path),))
            for table in HEARD:
                copy = f"INSERT OR IGNORE INTO {table} SELECT * FROM other.{table}"
                self._connection.execute(copy)
            self._connection.execute("DETACH other")


@dataclass(frozen=True, slots=True)
class Remains:
    """The state that an ended process left in its journal and run folder.

    Attributes:
        records: number of complete lines in metrics.jsonl.
        checkpoint: round and policy step of the newest one; zeros without any.
        sound: result of SQLite's integrity check, ``ok`` or the fault.
        sequence: the last number that it can have used; -1 for none.
        last_use: number of the last row that records a use.
        frames: content ids of the frames it serves.
        drawn: the next sample index of each time slot.
    """

    records: int
    checkpoint: tuple[int, int]
    sound: str = "ok"
    sequence: int = -1
    last_use: int = 0
    frames: tuple[bytes, ...] = ()
    drawn: tuple[tuple[int, int], ...] = ()


def autopsy(folder: Path) -> Remains:
    """Examine the run folder of a dead process; the copied journal stays unrepaired."""
    metrics = folder / "metrics.jsonl"
    lines = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
    remains = Remains(lines, newest_checkpoint(folder))
    with tempfile.TemporaryDirectory() as scratch:
        for part in folder.glob("journal.sqlite*"):
            if part.suffix != ".backup":
                shutil.copy(part, scratch)
        journal = Path(scratch) / "journal.sqlite"
        if not journal.exists():
            return remains
        with closing(sqlite3.connect(journal)) as connection:
            return _examined(remains, folder, connection.execute)


def _examined(remains: Remains, folder: Path, ask: Callable[[str], sqlite3.Cursor]) -> Remains:
    sound = "; ".join(str(row[0]) for row in ask("PRAGMA integrity_check"))
    if not ask("SELECT count(*) FROM sqlite_master WHERE name='numbers'").fetchone()[0]:
        return replace(remains, sound=sound)
    if aside := [path.name for path in folder.glob("journal.sqlite.corrupt-*")]:
        sound = f"put together again: {', '.join(aside)}"
    last = ask("SELECT value FROM numbers WHERE name='last_sequence'").fetchone()
    return replace(
        remains,
        sound=sound,
        sequence=remains.sequence if last is None or last[0] is None else last[0],
        last_use=ask("SELECT max(use) FROM used").fetchone()[0] or 0,
        frames=tuple(row[0] for row in ask("SELECT content_id FROM frames")),
        drawn=tuple(ask("SELECT epoch, next FROM draws ORDER BY epoch DESC LIMIT 200")),
    )


def newest_checkpoint(folder: Path) -> tuple[int, int]:
    """Return round and policy step of the checkpoint from which a node would resume."""
    found = (folder / "checkpoints").glob("step-*")
    named = [path for path in found if re.fullmatch(r"step-(\d{8,})", path.name)]
    if not named:
        return 0, 0
    state = json.loads((max(named) / "state.json").read_text())
    return int(state["round"]), int(state["policy_step"])


@contextmanager
def beside(folder: Path) -> Iterator[sqlite3.Connection]:
    """Open the journal of a node, which may be running, for short reads."""
    where = f"file:{folder / 'journal.sqlite'}?mode=ro"
    with closing(sqlite3.connect(where, uri=True, timeout=0.2)) as connection:
        yield connection


def admitted_from(connection: sqlite3.Connection, authors: Iterable[bytes]) -> int:
    wanted = list(authors)
    places = ", ".join("?" * len(wanted))
    query = f"SELECT total(admitted) FROM accounts WHERE author IN ({places})"
    return int(connection.execute(query, wanted).fetchone()[0])


class Gatherer:
    """Reads the state of all nodes every few seconds, in its own thread.

    Args:
        roots: other processes that belong to the run, with all their children.
        whole: whether all visible processes belong to the run, so one without a parent is lost.
    """

    def __init__(
        self, evidence: Evidence, nodes: Sequence[ChaosNode], roots: Sequence[int], whole: bool
    ) -> None:
        self._evidence, self._nodes, self._roots, self._whole = evidence, nodes, roots, whole
        self._extra: dict[int, float] = {}
        self._known: set[bytes] = set()
        self._used: dict[str, int] = {}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "gatherer")
        self._running = self._pool.submit(self._run)

    def close(self) -> None:
        """Stop, and raise the error that ended the thread, if any."""
        self._stop.set()
        self._pool.shutdown()
        self._running.result()

    def harvest(self, last: bool = False) -> None:
        """Keep new frames and uses; skip an unreadable journal except on the last pass."""
        for node in self._nodes:
            with suppress(*() if last else (sqlite3.Error,)), beside(node.run_folder) as journal:
                self._frames(journal)
                self._uses(node.name, journal)

    def _run(self) -> None:
        sampled = 0.0
        while not self._stop.wait(HARVEST_SECONDS):
            self.harvest()
            if time.monotonic() - sampled >= SAMPLE_SECONDS:
                sampled = time.monotonic()
                self.sample()

    def _frames(self, journal: sqlite3.Connection) -> None:
        names = {row[0] for row in journal.execute("SELECT content_id FROM frames")}
        for name in names - self._known:
            row = journal.execute("SELECT frame FROM frames WHERE content_id=?", (name,)).fetchone()
            if row is not None:
                assert sha256(row[0]).digest() == name, "the content id of a stored frame is wrong"
                self._evidence.add("frames", (name, row[0]))
                self._known.add(name)

    def _uses(self, name: str, journal: sqlite3.Connection) -> None:
        query = "SELECT use, author, epoch, number FROM used WHERE use>? ORDER BY use"
        rows = journal.execute(query, (self._used.get(name, 0),)).fetchall()
        self._evidence.add("uses", *((name, *row) for row in rows))
        if rows:
            self._used[name] = rows[-1][0]

    def sample(self) -> None:
        """Record each node's resources, metrics.jsonl separately, and stray processes."""
        now = time.time()
        known = {process.pid for root in self._roots for process in family(root)}
        for node in self._nodes:
            if node.status is None:
                tree = family(node.pid)
                known |= {process.pid for process in tree}
                size = folder_size(node.run_folder) / MIB
                records = _size(node.run_folder / "metrics.jsonl") / MIB
                at_work = now - (node.at_work_since or now)
                row = (now, node.name, at_work, *sums(tree), size - records, records)
                self._evidence.add("samples", row)
        if self._whole:
            every = psutil.process_iter(["status"])
            running = {each.pid for each in every if each.info["status"] != "zombie"}
            self._machine(now, running - known - {1})

    def _machine(self, now: float, extra: set[int]) -> None:
        tmp = Path("/tmp")
        sockets, everything = (len(list(tmp.glob(each))) for each in ("hivemind-p2p*.sock", "*"))
        self._extra = {pid: self._extra.get(pid, now) for pid in extra}
        lost = sum(now - since >= LOST_SECONDS for since in self._extra.values())
        daemons = sum(each.info["name"] == "p2pd" for each in psutil.process_iter(["name"]))
        self._evidence.add("machine", (now, lost, sockets, daemons, everything - sockets))


def family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def sums(processes: Iterable[psutil.Process]) -> tuple[float, int, int, int]:
    """Return total private MiB, descriptors, sockets and threads of some processes.

    Private memory is the proportional share of memory that no file backs. Nodes share libraries, so
    each node's share of those would grow when another node dies.
    """
    memory, descriptors, sockets, threads = 0.0, 0, 0, 0
    for process in processes:
        with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            memory += _own_memory(process)
            threads += process.num_threads()
            links = list(Path(f"/proc/{process.pid}/fd").iterdir())
            descriptors += len(links)
            sockets += sum(_is_socket(link) for link in links)
    return memory, descriptors, sockets, threads


def _own_memory(process: psutil.Process) -> float:
    """Return MiB; all resident memory if the kernel does not report private memory."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    if not rollup.exists():
        return process.memory_info().rss / MIB
    lines = rollup.read_text().splitlines()
    sizes = {name: int(size) for name, size, *_ in map(str.split, lines[1:])}
    return (sizes["Pss_Anon:"] + sizes["Pss_Shmem:"]) / 1024.0


def _is_socket(link: Path) -> bool:
    with suppress(OSError):
        return str(link.readlink()).startswith("socket:")
    return False


def folder_size(folder: Path) -> int:
    """Return the bytes of all files below a folder; a file that vanishes counts as 0."""
    return sum(_size(Path(top) / name) for top, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
