"""Run ``swarm-node`` in children of a process with all imports; see ``warm.py``.

Arguments that begin with ``experiments`` run ``python -m experiments``.

Imports take most of a command's CPU time. A child has its own streams, folder, environment and
exit status. It differs from a new process only in its imports.
"""

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import forkserver
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

from node.demo.node_process import NodeProcess

CAPABILITIES = 0x20080522
"""Version 3 of the capset interface."""
PATIENCE = 600.0
WARM = ["pytest", "tests.end_to_end.warm"]
SURROUNDINGS = {"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
_LOCK = threading.Lock()
"""Held while an exit status is read: ``multiprocessing`` allows only one thread."""


@dataclass(frozen=True)
class Place:
    """The surroundings of a command.

    Attributes:
        out: file to which standard output is appended.
        err: file for standard error; None uses ``out``.
        environment: variables in addition to those of the tests.
        session: whether the command gets its own session.
        ordinary: whether root drops its special file permissions.
    """

    folder: Path
    out: Path
    err: Path | None = None
    stdin: Path = Path(os.devnull)
    environment: Mapping[str, str] = field(default_factory=dict)
    session: bool = False
    ordinary: bool = False


class Forked:
    """A forked command with the ``subprocess.Popen`` methods that the tests use.

    It is a ``multiprocessing`` daemon, so that it also ends if a test fails.
    """

    def __init__(self, arguments: tuple[str, ...], place: Place) -> None:
        context = multiprocessing.get_context("forkserver")
        self.stdin: IO[bytes] | None = None
        self.args = arguments
        self._process = context.Process(target=_be, args=(arguments, place), daemon=True)
        with _LOCK:
            context.set_forkserver_preload(WARM)
            with patch.dict(os.environ, SURROUNDINGS):
                forkserver.ensure_running()
            self._process.start()

    @property
    def pid(self) -> int:
        pid = self._process.pid
        assert pid is not None
        return pid

    @property
    def returncode(self) -> int | None:
        with _LOCK:
            return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        wait([self._process.sentinel], timeout)
        if (status := self.returncode) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkedNode(NodeProcess):
    """A forked node; it stops when the tests end, like any node that they start."""

    def __init__(
        self, command: list[str], folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.folder = folder
        self._interrupted = False
        self._output = (folder / "output.log").open("ab")
        stdin = folder.parent / f"{folder.name}.stdin"
        os.mkfifo(stdin)
        held = os.fdopen(os.open(stdin, os.O_RDWR), "r+b", buffering=0)  # the only write end
        surroundings = {"stdin": stdin, "environment": environment or {}, "session": True}
        place = Place(Path.cwd(), folder / "output.log", **surroundings)
        process: Any = Forked((*command, "--stop-on-eof"), place)
        process.stdin = held
        self._process = process


@dataclass(frozen=True)
class Ended:
    status: int | None
    out: str
    err: str


def run(arguments: tuple[str, ...], folder: Path) -> Ended:
    """Run one command in ``folder`` and store its output next to the folder."""
    out, err = (folder.parent / name for name in ("out", "err"))
    environment = {"HOME": str(folder), "COLUMNS": "80"}
    place = Place(folder, out, err, environment=environment, session=True, ordinary=True)
    process = Forked(arguments, place)
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(process.returncode, out.read_text(), err.read_text())


def _be(arguments: tuple[str, ...], place: Place) -> None:
    import_module(WARM[-1])  # The fork server hides its import errors.
    if place.session:
        os.setsid()
    os.chdir(place.folder)
    os.dup2(os.open(place.stdin, os.O_RDONLY), 0)
    kept = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(place.out, kept), 1)
    os.dup2(1 if place.err is None else os.open(place.err, kept), 2)
    if place.ordinary and os.getuid() == 0:
        _be_ordinary()
    os.environ |= place.environment
    from node.cli.main import run

    if arguments[:1] == ("experiments",):
        sys.argv = [*arguments]
        run("experiments.commands")  # Both calls exit.
    else:
        sys.argv = ["swarm-node", *arguments]
        run()


def _be_ordinary() -> None:
    """Drop root's special file permissions."""
    none = (ctypes.c_uint32 * 6)()
    who = (ctypes.c_uint32 * 2)(CAPABILITIES, 0)
    if ctypes.CDLL(None, use_errno=True).capset(who, none):
        raise OSError(ctypes.get_errno(), "capset")
