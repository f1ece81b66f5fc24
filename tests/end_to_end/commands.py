"""``swarm-node`` as a user runs it: in a folder, with its output kept, and nothing left behind."""

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
"""Far beyond what any command takes, beside whatever else its machine does."""
GRACE_SECONDS = 30.0
NOBODY = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
"""Nobody listens there."""

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
"""Options of a node that takes as little time as it can."""

_OUR_LINE = re.compile(r"[\d-]{10} [\d:,]{12} (INFO|WARNING|ERROR) (node|swarm|protocol)[.\w]*: .*")


class Command:
    """One ``swarm-node`` process that works in ``folder``, in or below which its node is.

    Arguments that begin with ``experiments`` are those of ``python -m experiments``. ``under`` is
    what Python runs to start it, as ``-m torch.distributed.run``, and ``beneath`` a
    command that runs Python. ``forked``: without a command line, and with its imports done.
    As a context manager it leaves nothing running.
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
        # not in the folder, whose disk may be full
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
            assert self.process.poll() is None, f"it ended: {self.err}"
            assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {self.err}"
            time.sleep(0.05)
        return found

    def children(self, name: str) -> list[psutil.Process]:
        """Children with ``name`` in their command line: p2pd of the network's, others its own."""
        found = psutil.Process(self.process.pid).children(recursive=name == "p2pd")
        return [child for child in found if any(name in part for part in child.cmdline())]

    def records(self) -> list[RoundRecord]:
        return read_records(self.run.root)

    def stop(self, number: signal.Signals) -> int:
        """Send a signal; the exit status. ``left`` names processes and sockets that remain."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        sockets = [path for child in children for path in _sockets(child)]
        self.process.send_signal(number)
        status = self.wait()
        alive = psutil.wait_procs(children, timeout=120)[1]
        self.left = [*map(str, alive), *(path for path in sockets if Path(path).exists())]
        return status

    def odd_log_lines(self) -> list[str]:
        """Lines of node.log that are not messages of ours: traces, and what libraries say."""
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
    """A quick node, forked unless its environment has to be there when Python starts."""
    forked = not environment
    return Command(folder, "join", *QUICK, *options, environment=environment, forked=forked)


def _sockets(child: psutil.Process) -> list[str]:
    told = [part.removeprefix("-listen=/unix") for part in child.cmdline() if "-listen=" in part]
    return [path for each in told for path in (each, each.replace("p2pd", "p2pclient"))]
