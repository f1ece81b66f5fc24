"""Event loop and worker threads, CPU thread counts, unused memory, a check for semaphores."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any, TypeVar

import psutil

from node.errors import NodeError

log = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS = 15.0


class LoopThread:
    """An asyncio loop that runs on its own thread until closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result.

        Ctrl-C cancels the work; the call then waits up to ``STOP_SECONDS`` for its cleanup.
        """
        ended = threading.Event()

        async def watched() -> T:
            try:
                return await work
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(watched(), self._loop)
        try:
            return future.result()
        except BaseException:
            if not ended.is_set():
                future.cancel()
                ended.wait(STOP_SECONDS)
            raise

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def soon(self, action: Any) -> None:
        self._loop.call_soon_threadsafe(action)

    def close(self) -> None:
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            pending = asyncio.all_tasks(self._loop)
            for task in pending:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*pending, return_exceptions=True))
        finally:
            self._loop.close()


TURNS = 5
GAIN = 0.15  # minimum fraction of time that more threads must save

LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """Return variables that limit a process to ``threads`` (at least 1) CPU threads."""
    if threads < 1:
        raise ValueError(f"threads = {threads} must be at least 1")
    return dict.fromkeys(LIBRARIES, str(threads))


def choose(threads: int, share: int = 1) -> int:
    """Set the CPU threads of this process and its future children; return the number.

    0 takes all physical cores here, divided by ``share`` processes. Call it before numpy is
    imported: libraries other than torch keep their count.
    """
    threads = threads or max(1, cores() // share)
    os.environ.update(environment(threads))
    import torch

    torch.set_num_threads(threads)
    return threads


def fastest(work: Callable[[], object], most: int) -> int:
    """Find the number of threads, up to ``most``, that runs ``work`` fastest.

    Doublings alternate against temporary load; each must save ``GAIN`` of the time. torch keeps the
    returned number.
    """
    import torch

    counts = [1 << n for n in range(most.bit_length()) if 1 << n < most] + [most]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(TURNS + 1):
        for count in counts:
            torch.set_num_threads(count)
            begin = time.perf_counter()
            work()
            if turn:  # the first turn is a warm-up
                seconds[count].append(time.perf_counter() - begin)
    best = 1
    for count in counts:
        if median(seconds[count]) < (1 - GAIN) * median(seconds[best]):
            best = count
    torch.set_num_threads(best)
    log.info("%d of %d threads: %s", best, most, {c: median(s) for c, s in seconds.items()})
    return best


def cores() -> int:
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    physical = psutil.cpu_count(logical=False) or 1
    return min(physical, allowed) if allowed else physical


WORTH_TRIMMING = 256 << 20  # bytes of resident memory beyond that after the last trim


class MemoryTrimmer:
    """Returns the main memory that tensors have freed to the system, with glibc.

    Its allocator raises the size from which a block has its own mapping to that of the largest
    freed one, up to 32 MiB (mallopt(3), M_MMAP_THRESHOLD). Smaller tensors of all shapes then
    share one heap, and what is freed below a used block stays resident. With SmolLM2-135M on a CPU,
    2.0 GB were in use after each round, and 2.5 to 4.7 GB resident without this.
    """

    def __init__(self) -> None:
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
        self._process = psutil.Process()
        self._kept = 0

    def __call__(self) -> None:
        """Trim if enough has come since the last time, which takes some milliseconds."""
        if self._trim is None:
            return
        if self._process.memory_info().rss > self._kept + WORTH_TRIMMING:
            self._trim(0)
            self._kept = self._process.memory_info().rss


class WorkThread:
    """A worker thread that does not keep the process from exiting, unlike an executor.

    It lives as long as its owner and reuses freed memory; a new one per update is slower.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Run ``work`` after everything submitted before."""
        result: Future[T] = Future()
        self._work.put((work, result))
        return result

    def close(self) -> None:
        """End the thread after all submitted work, without waiting."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, result = item
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                result.set_exception(error)


SHARED_MEMORY = Path("/dev/shm")  # where Linux keeps semaphores


def check_semaphores() -> None:
    """Create and release a semaphore; raise :class:`NodeError` if that is impossible."""
    if "fork" not in get_all_start_methods():
        return  # Windows, which keeps no semaphores in files
    try:
        get_context("fork").Semaphore()  # other start methods start a process
    except (ImportError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        what = "cannot create a semaphore in shared memory"
        remedy = "Free some space there, or increase its size, as with: docker run --shm-size=1g."
        raise NodeError(what, f"{SHARED_MEMORY} ({reason})", remedy) from error
