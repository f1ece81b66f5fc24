"""What the device can do at best, and how work on it is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

LAUNCHES = ("LaunchKernel", "GraphLaunch")
"""In the names of the calls of the driver and the runtime that start work on a GPU."""


def wait(device: str) -> None:
    """Until the device has done all that it was told to."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def seconds(work: Callable[[], Any], device: str) -> float:
    """Wall-clock time of one call, what it leaves to the device included."""
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin


def typical(work: Callable[[], Any], device: str, turns: int) -> float:
    """Median seconds of some calls behind one that is not counted."""
    work()
    return median(seconds(work, device) for _ in range(turns))


def matrix_flops(device: str, dtype: str, *, smoke: bool) -> float:
    """Floating-point operations a second of a large product of random matrices."""
    side = 256 if smoke else 8192
    left, right = (torch.randn(side, side, device=device).to(getattr(torch, dtype)) for _ in "ab")
    return 2 * side**3 / typical(lambda: left @ right, device, 3 if smoke else 20)


def copied_bytes(device: str, *, smoke: bool) -> float:
    """Bytes a second that are read, and as many written, by a large copy."""
    source = torch.empty((1 << 22) if smoke else (1 << 30), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / typical(lambda: target.copy_(source), device, 3 if smoke else 20)


def forget_peak(device: str) -> None:
    """Measure the peak of memory from here on."""
    if device.startswith("cuda"):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_gb(device: str) -> float | None:
    """Most memory of the GPU that tensors had since :func:`forget_peak`; None on a CPU."""
    if not device.startswith("cuda"):
        return None
    return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)


def free_bytes(device: str) -> int:
    """Of the GPU, whoever has the rest."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


def launches(work: Callable[[], Any]) -> int | None:
    """How often ``work`` starts something on the GPU; None without one."""
    if not torch.cuda.is_available():
        return None
    work()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    return sum(event.count for event in seen.key_averages() if _launches(event.key))


def _launches(name: str) -> bool:
    return any(part in name for part in LAUNCHES)
