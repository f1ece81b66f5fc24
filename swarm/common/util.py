"""Utilities: wakeups between threads, durable files, formatting, statistics and processes."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

Say = Callable[[str], None]  # reports a line of text


async def cancel_all(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they do."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class BackgroundTasks:
    """Tasks of one owner, cancelled together; ``failed`` receives the error of one."""

    def __init__(self, failed: Callable[[BaseException], None] | None = None) -> None:
        self._failed = failed
        self._running: set[asyncio.Future[None]] = set()

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Awaitable[None]) -> asyncio.Future[None]:
        """Run ``work`` on the running loop until it ends or is cancelled."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        await cancel_all(self._running)

    def _ended(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if self._failed is None or task.cancelled():
            return
        if (error := task.exception()) is not None:
            self._failed(error)


class Wakeup:
    """A signal from any thread to one listener; lost if nothing listens."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listening: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

    def set(self) -> None:
        # The lock ensures that no loop is called after its listener ended and the loop was closed.
        with self._lock:
            if self._listening is not None:
                loop, event = self._listening
                loop.call_soon_threadsafe(event.set)

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """Yield an event that :meth:`set` sets; raise RuntimeError if it has a listener."""
        event = asyncio.Event()
        with self._lock:
            if self._listening is not None:
                raise RuntimeError("already listening: a member runs only once at a time")
            self._listening = asyncio.get_running_loop(), event
        try:
            yield event
        finally:
            with self._lock:
                self._listening = None


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entries to disk; on Windows, files only."""
    windows = os.name != "posix"
    if windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """Flush a file to disk; macOS would leave it in the disk's cache after ``fsync``."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):  # a file system that has no such call
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
            return
    os.fsync(descriptor)


PAUSES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28)


def replace(finished: Path, target: Path) -> None:
    """Rename ``finished`` to ``target``; on Windows, wait until no other process has it open."""
    for pause in PAUSES:
        try:
            finished.replace(target)
        except PermissionError:
            if sys.platform != "win32":
                raise
            time.sleep(pause)
        else:
            return
    finished.replace(target)


def replace_durably(finished: Path, target: Path) -> None:
    """Rename ``finished`` to ``target``; a crash leaves the old or the new file whole."""
    fsync_path(finished)
    replace(finished, target)
    if os.name == "posix":
        fsync_path(target.parent)


PRIVATE_FILE = 0o600


def make_private(path: Path) -> Path:
    """Create an empty file with mode 0600 under any umask, unless it exists.

    So the mode is set before anything opens the file. SQLite treats it as a new database and gives
    its mode to the files beside it. Errors are ignored; opening the file reports them.
    """
    with suppress(OSError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, PRIVATE_FILE))
    return path


UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
ENOUGH = 2.0  # minimum number of a unit before it is used, so that 60 and 90 minutes stay distinct


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, plural in s: ``1 round`` or ``2 rounds``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """Format a time as a whole number, at least one, of a suitable unit."""
    unit, size = next((u for u in reversed(UNITS) if seconds >= ENOUGH * u[1]), UNITS[0])
    return f"{max(1, round(seconds / size))} {unit}"


DISTRIBUTION = "swarm-node"


def version(package: str = DISTRIBUTION) -> str:
    """Return the version of a package, by default of this program; empty if not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


def t95(freedom: int) -> float:
    """Return Student's two-sided 95 % point, within 0.003."""
    return _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom


def import_path() -> str:
    """Return this process's import path, for the environment of another process."""
    return os.pathsep.join(str(Path(path).absolute()) for path in sys.path)


def in_words(status: int) -> str:
    """Describe an exit status."""
    if status < 0:
        known = -status in set(signal.Signals)  # not so for most real-time signals
        return f"signal {signal.Signals(-status).name if known else -status}"
    return f"exit status {status}"


def plain_json(value: Any, separators: tuple[str, str] = (", ", ": ")) -> str:
    """Encode as ASCII JSON; numbers that are not finite, which JSON lacks, become null."""
    try:
        return json.dumps(value, allow_nan=False, separators=separators)
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=separators)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
