"""Permanent confinement of a worker process, applied before anything else."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from node.tasks.sandbox import namespaces, seccomp

_OPEN_FILES = 64
OUT_OF_MEMORY = 70  # exit status of a worker


@dataclass(frozen=True, slots=True)
class Confinement:
    """Sandbox settings that the node sends to a worker.

    ``namespaces``: the worker creates its own because no outer sandbox did. ``listed`` are package
    search folders whose entries may be listed. ``program`` is a seccomp program in hex, ``once``
    the one of a process that scores one text; empty if there is none. ``memory_mib`` is address
    space, which macOS does not limit.
    """

    namespaces: bool
    landlock: bool
    readable: tuple[str, ...]
    listed: tuple[str, ...]
    network: bool
    program: str
    once: str
    memory_mib: int
    nice: int


def confine(own: Confinement) -> None:
    """Confine this process permanently on POSIX; raise ``OSError`` on failure."""
    if os.name != "posix":
        return
    import resource

    os.nice(own.nice)
    if own.namespaces:
        namespaces.enter(own.readable, network=own.network)
    if own.landlock:
        namespaces.restrict(own.readable, own.listed, network=own.network)
    limits = {
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if sys.platform != "darwin":  # which refuses it: each process there starts with more
        limits[resource.RLIMIT_AS] = own.memory_mib << 20
    if not own.once:
        limits[resource.RLIMIT_NPROC] = 0
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if own.program:
        seccomp.load(bytes.fromhex(own.program))
