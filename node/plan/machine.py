"""This machine's cores, memory, disk and GPU, with measured bandwidth and FLOPS."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from node.threads import cores

GIB = 1 << 30
COPIED = 64 << 20  # bytes per copy in a measurement: more than any cache
MATRIX, ON_CPU = 1024, 512
SECONDS = 0.1  # per measurement
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit, of either version of control groups."""


@dataclass(frozen=True, slots=True)
class Device:
    """The policy's device."""

    kind: str  # ``cpu``, ``cuda`` or ``mps``
    name: str
    memory: int  # bytes, as ``free``; of main memory if the device has none of its own
    free: int
    bandwidth: float  # bytes read per second
    flops: dict[str, float]  # per second by dtype, over a layer's product and both backward ones
    source: str = "measured"  # or by data sheet


@dataclass(frozen=True, slots=True)
class Machine:
    """Physical cores; memory, free and disk in bytes, within a container's limits."""

    cores: int
    memory: int
    free: int
    disk: int
    device: Device

    @property
    def apart(self) -> bool:
        """Whether the device has its own memory."""
        return self.device.kind == "cuda"


def main_memory() -> tuple[int, int]:
    """Return total and free bytes of main memory, within a container's limit."""
    seen = psutil.virtual_memory()
    limit = min([seen.total, *filter(None, map(_limit, LIMITS))])
    used = seen.total - seen.available
    return limit, max(0, min(seen.available, limit - used if limit < seen.total else limit))


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0  # this version of control groups is not in use
    return int(text) if text.isdecimal() else 0


def this_machine(device: str, folder: Path) -> Machine:
    """Measure this machine and the disk of ``folder``, which need not exist.

    Raises ``PolicyError`` without the ``device``, which is as ``policy.device``.
    """
    memory, free = main_memory()
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return Machine(cores(), memory, free, shutil.disk_usage(there).free, _device(device))


def asked_for(machine: Machine, memory: float | None, gpu: Device | None) -> Machine:
    """Return the machine with other main memory (GiB, all free) or another GPU."""
    if memory is not None:
        whole = round(memory * GIB)
        machine = replace(machine, memory=whole, free=whole)
        if not machine.apart:
            machine = replace(machine, device=replace(machine.device, memory=whole, free=whole))
    return machine if gpu is None else replace(machine, device=gpu)


def _device(name: str) -> Device:
    import torch

    from node.policy.device import device_named, wait_for
    from node.policy.onednn_linear import product_of

    device = device_named(name)
    if device.type == "cuda":
        free, memory = torch.cuda.mem_get_info(device)
        shown = torch.cuda.get_device_name(device)
    else:
        memory, free = main_memory()
        shown = "the CPU" if device.type == "cpu" else device.type

    def timed(work: Callable[[], object]) -> float:
        return _seconds(work, lambda: wait_for(device))

    source = torch.ones(COPIED, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    bandwidth = 2 * COPIED / timed(lambda: target.copy_(source))
    flops = {}
    size = ON_CPU if device.type == "cpu" else MATRIX
    for kind in ("float32", "bfloat16"):
        matrix = torch.ones(size, size, dtype=getattr(torch, kind), device=device)
        forward = partial(product_of(matrix), matrix, matrix, None)
        # Without CPU instructions for bfloat16, its backward products are another ten times slower.
        backward = partial(torch.mm, matrix, matrix), partial(torch.mm, matrix.t(), matrix)
        flops[kind] = 3 * 2 * size**3 / sum(timed(each) for each in (forward, *backward))
    return Device(device.type, shown, memory, free, bandwidth, flops)


def _seconds(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Return the fastest time of one call within a moment, after a warm-up."""
    work()
    wait()
    best, end = float("inf"), time.perf_counter() + SECONDS
    while (begin := time.perf_counter()) < end:
        work()
        wait()
        best = min(best, time.perf_counter() - begin)
    return best


CARDS: tuple[tuple[str, int, float, float], ...] = (
    ("GeForce RTX 4060", 8, 272e9, 30e12),
    ("GeForce RTX 3060", 12, 360e9, 25e12),
    ("GeForce RTX 4060 Ti", 16, 288e9, 44e12),
    ("GeForce RTX 4090", 24, 1008e9, 165e12),
    ("RTX A6000", 48, 768e9, 155e12),
    ("A100", 80, 2039e9, 312e12),
)
"""Name, GiB, bytes per second, dense 16-bit FLOPS with float32 accumulation."""
FLOAT32_SHARE = 0.25  # approximate float32 fraction of these FLOPS


def card(memory: float) -> Device:
    """Return a GPU of ``memory`` GiB, as fast as the largest known one up to it."""
    known = [each for each in CARDS if each[1] <= memory] or [CARDS[0]]
    name, _, bandwidth, products = known[-1]
    size = round(memory * GIB)
    flops = {"float32": products * FLOAT32_SHARE, "bfloat16": products}
    return Device("cuda", name, size, size, bandwidth, flops, source="by data sheet")
