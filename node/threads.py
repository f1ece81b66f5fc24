"""CPU threads, set on purpose: processes that share cores must not each take all of them."""

from __future__ import annotations

import os

import psutil

LIBRARIES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """Environment variables that pin a process started with them to ``threads`` CPU threads.

    Raises:
        ValueError: fewer than one.
    """
    if threads < 1:
        raise ValueError(f"threads = {threads} must be at least 1")
    return dict.fromkeys(LIBRARIES, str(threads))


def choose(threads: int) -> int:
    """Pin this process, and the ones it will start, to ``threads`` CPU threads; 0 takes every
    physical core it may run on. Returns the number.

    Call it before the first import of numpy: what is loaded by then keeps its own count, torch
    excepted.
    """
    threads = threads or _cores()
    os.environ.update(environment(threads))
    import torch

    torch.set_num_threads(threads)
    return threads


def _cores() -> int:
    allowed = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else 0
    physical = psutil.cpu_count(logical=False) or 1
    return min(physical, allowed) if allowed else physical
