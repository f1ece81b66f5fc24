"""Run ``swarm-node`` as a user does: in a folder, with its output recorded."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from node.monitor.history import read_records
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder
from tests.end_to_end.forked import Forked, Place

ROOT = Path(__file__).parents[2]
PATIENCE = 600.0
"""Seconds; no command takes this long, even on a busy machine."""
GRACE_SECONDS = 30.0
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
"""A peer address at which nothing listens."""

QUICK = (
    "--set=mixture.local=2",
    "--set=mixture.external=2",
    '--set=network.listen=["/ip4/127.0.0.1/tcp/0"]',
    "--set=node.threads=1",
    "--set=engine.max_new_tokens=8",
    "--set=schedule.eval_tasks=4",
    "--set=schedule.checkpoint_every=2",
    "--set=monitor.dashboard=false",
)
"""Options that make a node as fast as possible."""

_OUR_LINE = re.compile(r"[\d-]{10} [\d:,]{12} (INFO|WARNING|ERROR) (node|swarm|protocol)[.\w]*: .*")


class Command:
    """A ``swarm-node`` process whose working directory is ``folder``.

    Arguments that begin with ``experiments`` run ``python -m experiments``. ``under`` are Python
    arguments that launch the program, such as ``-m torch.distributed.run``; ``beneath`` is a
    command that launches Python. A ``forked`` process has its imports done and no command line.
    The context manager leaves no process running.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        beneath: Sequence[str] = (),
        forked: bool = False,
    ) -> None:
        self.left: list[str] = []
        self.run = RunFolder(folder / "swarm-run")
        # These are outside the folder, because its disk may be full.
        self._streams = [tempfile.NamedTemporaryFile("w+") for _ in range(2)]  # noqa: SIM115
        variables = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | dict(environment or {})
        self.process: subprocess.Popen[bytes] | Forked
        if forked:
            out, err = (Path(stream.name) for stream in self._streams)
            self.process = Forked(arguments, Place(folder, out, err, environment=variables))
            return
        program = ("node.cli.main", *arguments)
        if arguments[:1] == ("experiments",):
            program = arguments
        self.process = subprocess.Popen(
            [*beneath, sys.executable, *under, "-m", *program],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=self._streams[0],
            stderr=self._streams[1],
            env={**os.environ, **variables},
        )

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def out(self) -> list[str]:
        return self._lines(0)

    @property
    def err(self) -> list[str]:
        return self._lines(1)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        while not (found := condition()):
            assert self.process.poll() is None, f"the process ended: {self.err}"
            assert time.monotonic() < deadline, f"timed out after {PATIENCE:.0f} s: {self.err}"
            time.sleep(0.05)
        return found

    def children(self, name: str) -> list[psutil.Process]:
        """Return direct children by name; p2pd is also found below the network process."""
        found = psutil.Process(self.process.pid).children(recursive=name == "p2pd")
        return [child for child in found if any(name in part for part in child.cmdline())]

    def records(self) -> list[RoundRecord]:
        return read_records(self.run.root)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal, return the exit status, and list leftovers in ``left``."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        sockets = [path for child in children for path in _sockets(child)]
        self.process.send_signal(number)
        status = self.wait()
        alive = psutil.wait_procs(children, timeout=120)[1]
        self.left = [*map(str, alive), *(path for path in sockets if Path(path).exists())]
        return status

    def odd_log_lines(self) -> list[str]:
        """Return lines of node.log from libraries or tracebacks."""
        lines = self.run.log.read_text().splitlines()
        return [line for line in lines if not _OUR_LINE.fullmatch(line)]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for stream in self._streams:
            stream.close()

    def _lines(self, number: int) -> list[str]:
        return Path(self._streams[number].name).read_text().splitlines()


def join(folder: Path, *options: str, **environment: str) -> Command:
    """Start a fast node; fork it unless Python needs variables at its start."""
    forked = not environment
    return Command(folder, "join", *QUICK, *options, environment=environment, forked=forked)


def _sockets(child: psutil.Process) -> list[str]:
    told = [part.removeprefix("-listen=/unix") for part in child.cmdline() if "-listen=" in part]
    return [path for each in told for path in (each, each.replace("p2pd", "p2pclient"))]
