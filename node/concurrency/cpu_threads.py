"""CPU threads, set on purpose: processes that share cores must not each take all of them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from statistics import median

import psutil

log = logging.getLogger(__name__)

TURNS = 5
GAIN = 0.15
"""Share of the time that a doubling of threads has to save."""

LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """Environment variables that pin a process started with them to ``threads`` CPU threads.

    Raises:
        ValueError: fewer than one.
    """
    if threads < 1:
        raise ValueError(f"threads = {threads} must be at least 1")
    return dict.fromkeys(LIBRARIES, str(threads))


def choose(threads: int, share: int = 1) -> int:
    """Pin this process, and the ones it will start, to ``threads`` CPU threads; 0 takes every
    physical core it may run on, divided by the ``share`` of processes that work at a time. Returns
    the number.

    Call it before the first import of numpy: what is loaded by then keeps its own count, torch
    excepted.
    """
    threads = threads or max(1, cores() // share)
    os.environ.update(environment(threads))
    import torch

    torch.set_num_threads(threads)
    return threads


def fastest(work: Callable[[], object], most: int) -> int:
    """The number of threads, up to ``most``, that gets ``work`` done soonest here and now.

    Doublings from one thread up take turns, so that a passing load meets them all alike. More
    threads have to pay: on a small model, or beside other processes on the same cores, they wait
    for each other longer than they work. torch is left pinned to the number returned.
    """
    import torch

    counts = [1 << n for n in range(most.bit_length()) if 1 << n < most] + [most]
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for turn in range(TURNS + 1):
        for count in counts:
            torch.set_num_threads(count)
            begin = time.perf_counter()
            work()
            if turn:  # the first one warms up
                seconds[count].append(time.perf_counter() - begin)
    best = 1
    for count in counts:
        if median(seconds[count]) < (1 - GAIN) * median(seconds[best]):
            best = count
    torch.set_num_threads(best)
    log.info("%d of %d threads: %s", best, most, {c: median(s) for c, s in seconds.items()})
    return best


def cores() -> int:
    """Physical cores that this process may run on."""
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    physical = psutil.cpu_count(logical=False) or 1
    return min(physical, allowed) if allowed else physical
