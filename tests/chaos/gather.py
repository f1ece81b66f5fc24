"""Collects evidence while the swarm runs: outboxes, uses, and what each process holds."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import psutil

from tests.chaos.autopsy import beside
from tests.chaos.crew import ChaosNode
from tests.chaos.evidence import Evidence

HARVEST_SECONDS = 3.0
SAMPLE_SECONDS = 10.0
LOST_SECONDS = 60.0
"""For which a process has belonged to nobody when it is lost: children end after their node."""
MIB = float(1 << 20)


class Gatherer:
    """Looks at all nodes every few seconds on a thread of its own.

    Args:
        roots: other processes that belong to the run, with all below them.
        whole: whether all processes in sight are the run's, so that what belongs to none is lost.
    """

    def __init__(
        self,
        evidence: Evidence,
        nodes: Sequence[ChaosNode],
        roots: Sequence[int],
        whole: bool,
    ) -> None:
        self._evidence = evidence
        self._nodes = nodes
        self._roots = roots
        self._whole = whole
        self._extra: dict[int, float] = {}
        self._known: set[bytes] = set()
        self._used: dict[str, int] = {}
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(1, "gatherer")
        self._running = self._pool.submit(self._run)

    def close(self) -> None:
        """No more.

        Raises:
            Exception: what it broke off with before, so that evidence is missing.
        """
        self._stop.set()
        self._pool.shutdown()
        self._running.result()

    def harvest(self) -> None:
        """Frames and uses that are new in the journals; one that cannot be read now waits."""
        for node in self._nodes:
            with suppress(sqlite3.Error):
                self._read(node)

    def last_harvest(self) -> None:
        """The same of nodes that have ended.

        Raises:
            sqlite3.Error: a journal cannot be read.
        """
        for node in self._nodes:
            self._read(node)

    def _read(self, node: ChaosNode) -> None:
        with beside(node.run_folder) as journal:
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
                assert sha256(row[0]).digest() == name, "an outbox holds a frame under a wrong name"
                self._evidence.add("frames", (name, row[0]))
                self._known.add(name)

    def _uses(self, name: str, journal: sqlite3.Connection) -> None:
        query = "SELECT use, author, epoch, number FROM used WHERE use>? ORDER BY use"
        rows = journal.execute(query, (self._used.get(name, 0),)).fetchall()
        self._evidence.add("uses", *((name, *row) for row in rows))
        if rows:
            self._used[name] = rows[-1][0]

    def sample(self) -> None:
        """What each node holds, and what is left about on the machine.

        The folder is taken without metrics.jsonl, a line a round, which counts by itself.
        """
        now, known = time.time(), {pid for root in self._roots for pid in pids(family(root))}
        for node in self._nodes:
            if node.status is None:
                tree = family(node.pid)
                known |= pids(tree)
                figures = sums(tree)
                size = folder_size(node.run_folder) / MIB
                records = _size(node.run_folder / "metrics.jsonl") / MIB
                at_work = now - (node.at_work_since or now)
                row = (now, node.name, at_work, *figures, size - records, records)
                self._evidence.add("samples", row)
        if self._whole:
            self._machine(now, running() - known - {1})

    def _machine(self, now: float, extra: set[int]) -> None:
        """What belongs to no node, where all that is in sight belongs to the run."""
        tmp = Path("/tmp")
        sockets = sum(1 for _ in tmp.glob("hivemind-p2p*.sock"))
        everything = sum(1 for _ in tmp.iterdir())
        self._extra = {pid: self._extra.get(pid, now) for pid in extra}
        lost = sum(now - since >= LOST_SECONDS for since in self._extra.values())
        row = (now, lost, sockets, len(daemons()), everything - sockets)
        self._evidence.add("machine", row)


def running() -> set[int]:
    """All processes that have not ended."""
    return {p.pid for p in psutil.process_iter(["status"]) if p.info["status"] != "zombie"}


def daemons() -> list[psutil.Process]:
    """All p2p daemons."""
    return [p for p in psutil.process_iter(["name"]) if p.info["name"] == "p2pd"]


def pids(processes: Iterable[psutil.Process]) -> set[int]:
    """Their numbers."""
    return {process.pid for process in processes}


def family(pid: int) -> list[psutil.Process]:
    """A process and all below it; empty once it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def sums(processes: Iterable[psutil.Process]) -> tuple[float, int, int, int]:
    """MiB of own memory, descriptors, sockets and threads of some processes together.

    Own memory is the proportional share of what no file backs: libraries are shared among nodes,
    so that each one's share of them grows when another node dies.
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
    """MiB; of kernels that do not tell, all that is resident."""
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
    """Bytes of all files below a folder; what vanishes meanwhile counts nothing."""
    return sum(_size(Path(top) / name) for top, _, names in os.walk(folder) for name in names)


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.stat().st_size
    return 0
