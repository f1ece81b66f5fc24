"""Cores, memory, disk and GPU of this machine, independent of its load.

A plan has to be the same today and tomorrow, so nothing here is measured: not the free memory, nor
how fast busy cores are. ``swarm-node plan --probe`` measures a model's speed.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from node.threads import cores

GIB = 1 << 30
RESERVE = 2 << 30  # bytes of main memory left to the system, at most a quarter of it
CORE_FLOPS = 5e10  # float32 operations per second and core of a layer's products, with AVX2
EMULATED = 0.02  # what is left of them in bfloat16 without instructions for it
MEMORY_BANDWIDTH = 2e10  # bytes per second of main memory with two channels
CPUINFO = Path("/proc/cpuinfo")
LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""Files with a container's memory limit, of either version of control groups."""


@dataclass(frozen=True, slots=True)
class Device:
    kind: str  # ``cpu``, ``cuda`` or ``mps``
    name: str
    memory: int  # bytes, as ``usable``; of main memory if the device has none of its own
    usable: int  # what a plan counts on, a share if several nodes have the same GPU
    bandwidth: float  # bytes read per second
    flops: dict[str, float]  # per second by dtype, over a layer's product and both backward ones
    source: str = "assumed"  # or by data sheet


@dataclass(frozen=True, slots=True)
class Machine:
    """Physical cores; memory, usable memory and free disk in bytes, within a container's limits.

    ``disk`` is None for another machine, of which it is not known.
    """

    cores: int
    memory: int
    usable: int
    disk: int | None
    device: Device

    @property
    def apart(self) -> bool:
        """Whether the device has its own memory."""
        return self.device.kind == "cuda"


def main_memory() -> tuple[int, int]:
    """Return total and free bytes of main memory, within a container's limit."""
    memory = psutil.virtual_memory()
    limit = min([memory.total, *filter(None, map(_limit, LIMITS))])
    used = memory.total - memory.available
    return limit, max(0, min(memory.available, limit - used if limit < memory.total else limit))


def _limit(path: Path) -> int:
    try:
        text = path.read_text(encoding="ascii").strip()
    except OSError:
        return 0  # this version of control groups is not in use
    return int(text) if text.isdecimal() else 0


def usable(memory: int) -> int:
    """Return the bytes of so much main memory that a plan counts on."""
    return memory - min(RESERVE, memory // 4)


def this_machine(device: str, folder: Path) -> Machine:
    """Describe this machine and the disk of ``folder``, which need not exist.

    What other programs do at the moment changes nothing but ``disk``. Raises ``PolicyError``
    without the ``device``, which is as ``policy.device``.
    """
    memory, _ = main_memory()
    base = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    hardware = _device(device, cores(), memory)
    return Machine(cores(), memory, usable(memory), shutil.disk_usage(base).free, hardware)


def one_of(machine: Machine, nodes: int) -> Machine:
    """Return the machine as each of several equal nodes can count on its GPU's memory."""
    if not machine.apart:
        return machine
    return replace(machine, device=replace(machine.device, usable=machine.device.usable // nodes))


def asked_for(machine: Machine, memory: float | None, gpu: Device | None) -> Machine:
    """Return the machine, or another one with so much main memory (GiB) or this GPU."""
    if memory is None and gpu is None:
        return machine
    machine = replace(machine, disk=None)
    if memory is not None:
        size = round(memory * GIB)
        machine = replace(machine, memory=size, usable=usable(size))
        if not machine.apart:
            device = replace(machine.device, memory=size, usable=usable(size))
            machine = replace(machine, device=device)
    return machine if gpu is None else replace(machine, device=gpu)


def _device(name: str, count: int, memory: int) -> Device:
    import torch

    from node.policy.device import device_named

    device = device_named(name)
    if device.type == "cuda":
        props = torch.cuda.get_device_properties(device)
        # bfloat16 came with compute capability 8 (Ampere); before, it is emulated.
        return by_data_sheet(props.name, props.total_memory, half=props.major >= 8)
    flops = {"float32": count * CORE_FLOPS, "bfloat16": count * CORE_FLOPS}
    if device.type == "cpu":
        flops["bfloat16"] *= 1.5 if bfloat16_instructions() else EMULATED
    label = "the CPU" if device.type == "cpu" else device.type
    return Device(device.type, label, memory, usable(memory), MEMORY_BANDWIDTH, flops)


def bfloat16_instructions(cpuinfo: Path = CPUINFO) -> bool:
    """Return whether this CPU multiplies bfloat16; False where the kernel does not list it."""
    try:
        flags = set(cpuinfo.read_text(encoding="utf-8").split())
    except OSError:
        return False
    return bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})


def emulated(dtype: str, cpuinfo: Path = CPUINFO) -> str:
    """Return why a dtype is slow on this CPU, with the remedy; empty if it is not known to be."""
    if dtype != "bfloat16" or not cpuinfo.exists() or bfloat16_instructions(cpuinfo):
        return ""
    reason = f"this CPU has no instructions for it and takes up to {1 / EMULATED:.0f} times as long"
    return f"{dtype!r}: {reason}: set it to 'float32'"


CARDS: tuple[tuple[str, int, float, float], ...] = (
    ("GeForce RTX 4060", 8, 272e9, 30e12),
    ("GeForce RTX 3060", 12, 360e9, 25e12),
    ("GeForce RTX 4060 Ti", 16, 288e9, 44e12),
    ("GeForce RTX 4090", 24, 1008e9, 165e12),
    ("RTX A6000", 48, 768e9, 155e12),
    ("H100", 80, 3350e9, 989e12),
    ("A100", 80, 2039e9, 312e12),
    ("H200", 141, 4800e9, 989e12),
)
"""Name, GiB, bytes per second, dense 16-bit FLOPS with float32 accumulation; by size."""
FLOAT32_SHARE = 0.25  # approximate float32 fraction of these FLOPS


def card(memory: float) -> Device:
    """Return a GPU of ``memory`` GiB, as fast as the largest known one up to it."""
    cards = [each for each in CARDS if each[1] <= memory] or [CARDS[0]]
    return by_data_sheet(cards[-1][0], round(memory * GIB))


def by_data_sheet(name: str, size: int, *, half: bool = True) -> Device:
    """Return the GPU of this name, or if unknown the largest known one up to its size."""
    named = [each for each in CARDS if each[0] in name]
    sized = [each for each in CARDS if each[1] <= size / GIB + 1] or [CARDS[0]]
    _, _, bandwidth, products = max(named, key=lambda each: len(each[0])) if named else sized[-1]
    half_flops = products if half else EMULATED * products
    flops = {"float32": products * FLOAT32_SHARE, "bfloat16": half_flops}
    return Device("cuda", name, size, size, bandwidth, flops, source="by data sheet")
