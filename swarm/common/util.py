"""What one thread does, told to a task on the event loop of another."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Wakeup:
    """Set by any thread; while nobody listens that is forgotten."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self) -> None:
        """Set the event of whoever listens."""
        # Under the lock, so that no loop is called after its listener has gone and it was closed.
        with self._lock:
            if self._listening is not None:
                loop, event = self._listening
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event of the running loop that is set by :meth:`set` until the block ends.

        Raises:
            RuntimeError: somebody listens already.
        """
        event = asyncio.Event()
        with self._lock:
            if self._listening is not None:
                raise RuntimeError("somebody listens already: a member runs once at a time")
            self._listening = asyncio.get_running_loop(), event
        try:
            yield event
        finally:
            with self._lock:
                self._listening = None


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to the disk; on Windows files, as folders cannot be."""
    windows = os.name != "posix"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_durably(finished: Path, target: Path) -> None:
    """Rename ``finished`` to ``target`` so that either the old or the whole new file is there."""
    fsync_path(finished)
    finished.replace(target)
    if os.name == "posix":
        fsync_path(target.parent)


PRIVATE_FILE = 0o600


def make_private(path: Path) -> Path:
    """Make an empty file for its owner alone, unless there is one; for any umask.

    Whoever opens it then finds its mode set. SQLite takes it for a new database and gives its mode
    to the files beside it. What keeps it from being made is left for the opening to say.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    return path


UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
ENOUGH = 2.0
"""Of a unit, before it is taken: 90 minutes are told apart from 60."""


def counted(count: int, noun: str) -> str:
    """``1 round`` or ``2 rounds``: a noun whose plural ends in s, with how many there are."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A time as a whole number of the unit that suits it, at least one."""
    unit, size = next((u for u in reversed(UNITS) if seconds >= ENOUGH * u[1]), UNITS[0])
    return f"{max(1, round(seconds / size))} {unit}"


DISTRIBUTION = "swarm-node"


def version() -> str:
    """Of this program; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""


_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t95(freedom: int) -> float:
    """The two-sided 95 % point of Student's t; beyond 30 degrees of freedom the normal one."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96


def import_path() -> str:
    """Where this process imports from, for the environment of another."""
    return os.pathsep.join(str(Path(path).absolute()) for path in sys.path)


def in_words(status: int) -> str:
    """An exit status as people say it."""
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def socket_at_stdin() -> socket.socket:
    """The socket at descriptor 0, moved where nothing that reads standard input meets it.

    On Windows, where a socket is no file, standard input says which one was shared.
    """
    if sys.platform == "win32":
        return socket.fromshare(sys.stdin.buffer.read())
    end = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.close(null)
    return end
