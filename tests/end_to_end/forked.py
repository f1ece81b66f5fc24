"""``swarm-node`` in children of a process that has read all it needs: a command takes no start.

A child has its own streams, folder and exit status, and no rights beyond those of a file's owner
where the tests run as root: everything but the imports is as in a process of its own.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

from commands import PATIENCE

CAPABILITIES = 0x20080522
"""Version 3 of what capset takes."""
LOADED = [
    "pytest",
    "node.cli.program",
    "node.demo.run",
    "node.doctor.machine",
    "node.doctor.network",
    "node.evaluation.model_eval",
    "node.experiment.hostile_report",
    "node.experiment.regime_report",
    "node.run.join",
    "node.run.seed_node",
    "swarm.transport.hivemind.transport",
]


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int | None
    out: str
    err: str


def run(arguments: tuple[str, ...], folder: Path) -> Ended:
    """Run one command in ``folder``; what it printed is kept beside that."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LOADED)
    streams = [folder.parent / "out", folder.parent / "err"]
    process = context.Process(target=_be, args=(arguments, folder, streams))
    process.start()
    process.join(PATIENCE)
    if process.is_alive():
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    out, err = (path.read_text() for path in streams)
    return Ended(process.exitcode, out, err)


def _be(arguments: tuple[str, ...], folder: Path, streams: list[Path]) -> None:
    os.setsid()
    os.chdir(folder)
    for number, path in enumerate(streams, start=1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    if os.getuid() == 0:
        _be_ordinary()
    os.environ |= {"HOME": str(folder), "COLUMNS": "80"}
    sys.argv = ["swarm-node", *arguments]
    from node.cli.main import run

    run()


def _be_ordinary() -> None:
    """Give up what root may beyond the permissions of a file's owner."""
    none = (ctypes.c_uint32 * 6)()
    who = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    if ctypes.CDLL(None, use_errno=True).capset(who, none):
        raise OSError(ctypes.get_errno(), "capset")
