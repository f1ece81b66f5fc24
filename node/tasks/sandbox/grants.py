"""What the user's own file gives the worker of a task beyond what every worker has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from node.tasks.sandbox import seccomp
from node.tasks.sandbox.confine import Confinement
from node.tasks.sandbox.readable import outermost, readable
from node.tasks.sandbox.walls import Walls

_FOR_NAMES = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/ssl", "/etc/pki")


@dataclass(frozen=True, slots=True)
class Grants:
    """Of one worker. Tasks with other grants have another worker.

    Attributes:
        read: paths that it may read.
        network: whether it has the network.
        evaluates: whether it may evaluate text, in a copy of itself for each.
    """

    read: tuple[str, ...] = ()
    network: bool = False
    evaluates: bool = False

    def confinement(self, walls: Walls, *, memory_mib: int, nice: int) -> Confinement:
        """Of a worker with these."""
        programs = seccomp.programs(network=self.network) if walls.seccomp else {}
        program = programs.get("split" if self.evaluates else "serve", b"")
        once = programs["once"] if self.evaluates else b""
        extra: Sequence[str] = _existing(_FOR_NAMES) if self.network else ()
        return Confinement(
            namespaces=walls.kind == "namespaces",
            landlock=walls.landlock,
            readable=outermost((*readable(), *self.read, *extra)),
            listed=tuple(str(Path(entry).absolute()) for entry in filter(None, sys.path)),
            network=self.network,
            program=program.hex(),
            once=once.hex(),
            memory_mib=memory_mib,
            nice=nice,
        )


def _existing(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if Path(path).exists()]
