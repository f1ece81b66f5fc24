"""The nodes: started by the ordinary command, and hurt from outside as machines hurt them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

from node.config.config import Config, write_config
from node.storage.atomic_files import write_atomic
from protocol.identity import Identity
from tests.chaos.launcher import NETWORK, OFFSET
from tests.chaos.world import ROOT, World

MODELS = ("tiny", "tiny-wide")
PAUSE_SECONDS = 0.125
"""For each node, before each round of every node: a larger crowd leaves as much of two cores to
the network and to those who start."""


class ChaosNode:
    """One ``swarm-node`` in its folder, one life after another.

    Attributes:
        life: number of the present process, from 1.
        began: unix time at which it was started.
        at_work_since: unix time at which a round of this life was first seen; None before.
        stopped: whether it is under SIGSTOP.
        shift: seconds by which its clock is ahead.
    """

    def __init__(
        self,
        world: World,
        folder: Path,
        name: str,
        side: int,
        *,
        pause: float = 0.0,
        command: str = "join",
    ) -> None:
        self.name, self.folder, self.side = name, folder, side
        self.run_folder = folder / "run"
        self.life, self.began, self.stopped, self.shift = 0, 0.0, False, 0.0
        self.at_work_since: float | None = None
        self._inherited = 0
        self._world = world
        self._command = command
        self._pause = pause
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        self.clock_file = folder / "clock"
        self.set_clock(0.0)
        self._output = (folder / "output.log").open("ab")

    def prepare(self, number: int, peers: list[str]) -> bytes:
        """Write identity and configuration into the run folder; the public key."""
        self.run_folder.mkdir(exist_ok=True)
        identity = Identity.create(self.run_folder / "identity.key")
        settings = {
            "node.name": self.name,
            "node.seed": number,
            "node.threads": 1,
            "network.listen": [f"/ip4/{self._world.address(self.side)}/tcp/0"],
            "network.peers": peers,
            "network.start_timeout": 120.0,
            "policy.model": MODELS[number % len(MODELS)],
            "mixture.local": 2,
            "mixture.external": 2,
            "engine.max_new_tokens": 8,
            "learner.micro_batch_tokens": 1024,
            "schedule.eval_every": 1000,
            "schedule.eval_tasks": 4,
            "schedule.checkpoint_every": 10,
            "monitor.live": False,
        }
        write_config(self.run_folder / "node.toml", Config.with_overrides(settings))
        return identity.author

    def start(self) -> None:
        """Begin another life."""
        self.life, self.began, self.stopped = self.life + 1, time.time(), False
        self.at_work_since = None
        self._inherited = self._records().rfind(b"\n") + 1
        launch = [sys.executable, "-m", "tests.chaos.launcher", str(self.clock_file)]
        config = ["--config", str(self.run_folder / "node.toml"), "--stop-on-eof"]
        self._process = subprocess.Popen(
            [
                *self._world.prefix(self.side),
                *(*launch, str(self._pause), self._command, *config),
            ],
            stdin=subprocess.PIPE,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )

    @property
    def pid(self) -> int:
        """Of the present process."""
        assert self._process
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll() if self._process else 0

    @property
    def at_work(self) -> bool:
        """Whether it runs and has done a round of this life.

        Not by the time of its records: a node that starts cuts a half line off them.
        """
        if self.at_work_since is None and b"\n" in self._records(self._inherited):
            self.at_work_since = time.time()
        return self.status is None and self.at_work_since is not None

    @property
    def last_words(self) -> str:
        """The last line it printed."""
        text = (self.folder / "output.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else ""

    def children(self, name: str) -> list[psutil.Process]:
        """Its children with ``name`` in their command line."""
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(name in part for part in child.cmdline()):
                        found.append(child)
        return found

    def kill(self) -> None:
        """SIGKILL, as the system does when memory is short."""
        assert self._process
        self._process.kill()
        self._process.wait()
        self._hang_up()

    def stop(self, whole: bool) -> None:
        """SIGSTOP; with ``whole`` its network too, as when a laptop's lid closes."""
        self._signal(signal.SIGSTOP, whole)
        self.stopped = True

    def go_on(self, whole: bool) -> None:
        """SIGCONT, whoever of them still lives."""
        self._signal(signal.SIGCONT, whole)
        self.stopped = False

    def kill_child(self, name: str) -> bool:
        """SIGKILL for one child; whether there was one."""
        for child in self.children(name):
            with suppress(psutil.NoSuchProcess):
                child.kill()
                return True
        return False

    def set_clock(self, shift: float) -> None:
        """Move its wall clock to ``shift`` seconds ahead of the machine's."""
        self.shift = shift
        if not self.clock_file.exists():
            write_atomic(self.clock_file, OFFSET.pack(shift), durable=False)
        with self.clock_file.open("rb+") as file:
            file.write(OFFSET.pack(shift))

    def interrupt(self) -> None:
        """Ask it to stop."""
        assert self._process
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> int | None:
        """Its exit status; None where it still runs after so long."""
        assert self._process
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            self._hang_up()
        return self._process.returncode

    def close(self) -> None:
        """Leave nothing running."""
        if self._process and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._hang_up()
        self._output.close()

    def _records(self, begin: int = 0) -> bytes:
        """Its lines in metrics.jsonl, from a byte on."""
        with suppress(FileNotFoundError), (self.run_folder / "metrics.jsonl").open("rb") as file:
            file.seek(begin)
            return file.read()
        return b""

    def _hang_up(self) -> None:
        assert self._process
        if self._process.stdin and not self._process.stdin.closed:
            self._process.stdin.close()

    def _signal(self, number: signal.Signals, whole: bool) -> None:
        names = ("p2pd", NETWORK) if whole else ()
        for pid in (self.pid, *(child.pid for name in names for child in self.children(name))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
