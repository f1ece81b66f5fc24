"""How a worker gives up, for good, what it does not need. It calls this before anything else."""

from __future__ import annotations

import os
from dataclasses import dataclass

from node.tasks.sandbox import landlock, namespaces, seccomp

_OPEN_FILES = 64


@dataclass(frozen=True, slots=True)
class Confinement:
    """What the node tells a worker of its walls.

    Attributes:
        namespaces: make own ones, where nobody did before.
        landlock: the kernel has it.
        readable: all paths that may be read.
        listed: folders that Python looks for packages in, whose names may be read.
        network: the user's own file gives this worker the network.
        program: for seccomp, in hex; empty where the machine has none.
        once: the same for a process that scores one text; empty where no text is evaluated.
        memory_mib: address space.
        nice: how much this process yields to others.
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
    """Give it up; nothing where the system is not one of the family of Unix.

    Raises:
        OSError: the machine does not do what the node found it could.
    """
    if os.name != "posix":
        return
    import resource

    os.nice(own.nice)
    if own.namespaces:
        namespaces.enter(own.readable, network=own.network)
    if own.landlock:
        landlock.restrict(own.readable, own.listed, network=own.network)
    limits = {
        resource.RLIMIT_AS: own.memory_mib << 20,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
    }
    if not own.once:
        limits[resource.RLIMIT_NPROC] = 0
    for limit, value in limits.items():
        resource.setrlimit(limit, (value, value))
    if own.program:
        seccomp.load(bytes.fromhex(own.program))
