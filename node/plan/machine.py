"""What a machine has: cores, main memory, disk, a GPU, and how fast it moves and multiplies."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from node.concurrency.threads import cores

GIB = 1 << 30
COPIED = 64 << 20
"""Bytes of each copy by which a bandwidth is measured: more than any cache of its own."""
MATRIX, ON_CPU = 1024, 512
SECONDS = 0.1
"""For which each measurement goes on."""
LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container's limit stands, of either version of control groups."""


@dataclass(frozen=True, slots=True)
class Device:
    """What the policy's numbers are on.

    Attributes:
        kind: ``cpu``, ``cuda`` or ``mps``.
        name: for people.
        memory, free: bytes; those of main memory where it has none of its own.
        bandwidth: bytes that are read a second.
        flops: multiplications and additions a second, in float32 and in bfloat16, of a layer's
            product and both that an update makes on the way back.
        told: whether speed was measured, or stands in a data sheet.
    """

    kind: str
    name: str
    memory: int
    free: int
    bandwidth: float
    flops: dict[str, float]
    told: str = "measured"


@dataclass(frozen=True, slots=True)
class Machine:
    """What a node may use.

    Attributes:
        cores: physical ones that this process may run on.
        memory, free: bytes of main memory, with a container's limit taken off.
        disk: free bytes where the node's folder is to be.
    """

    cores: int
    memory: int
    free: int
    disk: int
    device: Device

    @property
    def apart(self) -> bool:
        """Whether the device has memory of its own."""
        return self.device.kind == "cuda"


def main_memory() -> tuple[int, int]:
    """Bytes of main memory, and of these the ones that are free, within a container's limit."""
    seen = psutil.virtual_memory()
    limit = min([seen.total, *filter(None, map(_limit, LIMITS))])
    used = seen.total - seen.available
    return limit, max(0, min(seen.available, limit - used if limit < seen.total else limit))


def _limit(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0  # no control group of this version
    return int(text) if text.isdecimal() else 0


def this_machine(device: str, folder: Path) -> Machine:
    """Measure what is here, in half a second.

    Args:
        device: as ``policy.device``.
        folder: where the node is to be; what exists of it is asked for its disk.

    Raises:
        PolicyError: there is no such device.
    """
    memory, free = main_memory()
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    return Machine(cores(), memory, free, shutil.disk_usage(there).free, _device(device))


def asked_for(machine: Machine, memory: float | None, gpu: Device | None) -> Machine:
    """The machine with other amounts: GiB of main memory all of which is free, another GPU."""
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
        # Without instructions for it, bfloat16 is ten times slower still on the way back.
        products = (
            forward,
            partial(torch.mm, matrix, matrix),
            partial(torch.mm, matrix.t(), matrix),
        )
        flops[kind] = 3 * 2 * size**3 / sum(timed(each) for each in products)
    return Device(device.type, shown, memory, free, bandwidth, flops)


def _seconds(work: Callable[[], object], wait: Callable[[], None]) -> float:
    """Of one time, the quickest of those that fit into a moment after a first."""
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
"""Name, GiB, bytes a second, and dense products of 16 bits a second that are added in float32."""
FLOAT32_SHARE = 0.25
"""Of these products, those in float32, about."""


def card(memory: float) -> Device:
    """A GPU with so many GiB, as fast as the largest known one that has no more."""
    known = [each for each in CARDS if each[1] <= memory] or [CARDS[0]]
    name, _, bandwidth, products = known[-1]
    size = round(memory * GIB)
    flops = {"float32": products * FLOAT32_SHARE, "bfloat16": products}
    return Device("cuda", name, size, size, bandwidth, flops, told="by data sheet")
