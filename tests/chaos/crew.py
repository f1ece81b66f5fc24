"""Nodes that the ordinary command starts and faults disturb, and their swarm."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil

from node.config.config import Config, write_config
from node.monitor.history import read_records
from node.network.creation import create_swarm
from node.storage.atomic_files import write_atomic
from protocol.identity import Identity
from tests.chaos.launcher import NETWORK, OFFSET
from tests.chaos.world import ROOT, World
from tests.routers.member import SMALL

MODELS = ("tiny", "tiny-wide")
PATIENCE = 600.0
PAUSE_SECONDS = 0.125
"""Seconds of pause before each round, per node of the swarm.
A larger swarm thus leaves the same share of two cores to the network and to starting nodes."""


class ChaosNode:
    """One ``swarm-node`` in its folder, over several lives (processes).

    Attributes:
        life: number of the current process, from 1.
        began: unix time at which this process was started.
        at_work_since: unix time at which a round of this life was first seen; None before.
        stopped: whether the process is under SIGSTOP.
        shift: seconds by which the node's clock is ahead.
    """

    def __init__(self, world: World, folder: Path, side: int, pause: float = 0.0, command="join"):
        self.name, self.folder, self.side = folder.name, folder, side
        self.run_folder = folder / "run"
        self.life, self.began, self.stopped, self.shift = 0, 0.0, False, 0.0
        self.at_work_since: float | None = None
        self._inherited = 0
        self._world, self._command, self._pause = world, command, pause
        self._process: Any = None
        folder.mkdir()
        self.clock_file = folder / "clock"
        self.set_clock(0.0)
        self._output = (folder / "output.log").open("ab")

    def prepare(self, number: int, peers: list[str]) -> bytes:
        settings = {
            "node.seed": number,
            "network.peers": peers,
            "policy.model": MODELS[number % len(MODELS)],
            "schedule.checkpoint_every": 10,
        }
        return self.configure(SMALL | settings).author

    def configure(self, settings: dict[str, Any]) -> Identity:
        self.run_folder.mkdir(exist_ok=True)
        listen = [f"/ip4/{self._world.address(self.side)}/tcp/0"]
        own = {"node.name": self.name, "network.listen": listen, "network.start_timeout": 120.0}
        write_config(self.run_folder / "node.toml", Config.with_overrides(own | settings))
        return Identity.create(self.run_folder / "identity.key")

    def start(self) -> None:
        self.life, self.began, self.stopped = self.life + 1, time.time(), False
        self.at_work_since = None
        self._inherited = self._records().rfind(b"\n") + 1
        words = ["launcher", str(self.clock_file), str(self._pause), self._command]
        words += ["--config", str(self.run_folder / "node.toml"), "--stop-on-eof"]
        apart = {"stdin": subprocess.PIPE, "start_new_session": True}
        self._process = _begun(self._world, self.side, words, self._output, **apart)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        return self._process.poll() if self._process else 0

    @property
    def at_work(self) -> bool:
        """Whether the node runs and has finished a round of this life.

        The age of its records does not show this: a starting node truncates a partial line.
        """
        if self.at_work_since is None and b"\n" in self._records(self._inherited):
            self.at_work_since = time.time()
        return self.status is None and self.at_work_since is not None

    @property
    def last_words(self) -> str:
        text = (self.folder / "output.log").read_text(errors="replace").strip()
        return text.splitlines()[-1] if text else ""

    def children(self, name: str) -> list[psutil.Process]:
        found = []
        with suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if any(name in part for part in child.cmdline()):
                        found.append(child)
        return found

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()

    def stop(self, whole: bool) -> None:
        """Send SIGSTOP; with ``whole`` to its network too, as when a laptop's lid closes."""
        self._signal(signal.SIGSTOP, whole)
        self.stopped = True

    def go_on(self, whole: bool) -> None:
        self._signal(signal.SIGCONT, whole)
        self.stopped = False

    def kill_child(self, name: str) -> bool:
        for child in self.children(name):
            with suppress(psutil.NoSuchProcess):
                child.kill()
                return True
        return False

    def set_clock(self, shift: float) -> None:
        self.shift = shift
        if not self.clock_file.exists():
            write_atomic(self.clock_file, OFFSET.pack(shift), durable=False)
        with self.clock_file.open("rb+") as file:
            file.write(OFFSET.pack(shift))

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def wait(self, seconds: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
            self._process.stdin.close()
        return self._process.returncode

    def close(self) -> None:
        if self._process:
            self.kill()
        self._output.close()

    def _records(self, begin: int = 0) -> bytes:
        with suppress(FileNotFoundError), (self.run_folder / "metrics.jsonl").open("rb") as file:
            file.seek(begin)
            return file.read()
        return b""

    def _signal(self, number: signal.Signals, whole: bool) -> None:
        names = ("p2pd", NETWORK) if whole else ()
        for pid in (self.pid, *(child.pid for name in names for child in self.children(name))):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _begun(world: World, side: int, words: list[str], output: IO[bytes], **options: Any) -> Any:
    """Start a module of this package as a process on one side of the network."""
    module, *arguments = words
    return subprocess.Popen(
        [*world.prefix(side), sys.executable, "-m", f"tests.chaos.{module}", *arguments],
        stdout=output,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        **options,
    )


@dataclass(slots=True)
class Crowd:
    """All processes; ``authors`` are the keys of ``nodes`` in their order."""

    seed: ChaosNode
    nodes: list[ChaosNode]
    authors: list[bytes]
    listeners: dict[Path, subprocess.Popen[bytes]]
    signed: bytes

    @property
    def roots(self) -> list[int]:
        """Root processes except the nodes; their children belong to the run too."""
        return [self.seed.pid, *(each.pid for each in self.listeners.values()), os.getpid()]


@contextmanager
def crowd(world: World, folder: Path, nodes: int, *, hurt: bool, pause: float) -> Iterator[Crowd]:
    """Start all processes, wait until every node has done a round, and end them later.

    Args:
        hurt: whether to add listeners and to put the first node on a small disk.
        pause: seconds before each round.
    """
    seed = ChaosNode(world, folder / "seed", 0, command="bootstrap")
    members, listeners, authors = [], {}, []
    try:
        signed, address = _found(seed)
        for side in (0, 1) if hurt else ():
            place = folder / f"listener-{side}"
            listeners[place] = _listen(world, place, side, address)
        for number in range(nodes):
            node = ChaosNode(world, folder / f"node-{number + 1}", number % 2, pause)
            members.append(node)
            if hurt and number == 0:
                world.small_disk(node.run_folder)
            authors.append(node.prepare(number, [address]))
            node.start()
        for node in members:
            wait_for(lambda n=node: n.at_work, lambda n=node: n.status, node.folder)
        for place, process in listeners.items():
            wait_for((place / "ready").exists, process.poll, place)
        yield Crowd(seed, members, authors, listeners, signed)
    finally:
        for process in listeners.values():
            process.kill()
            process.wait()
        for node in [*members, seed]:
            node.close()


def wait_for(condition: Callable[[], bool], ended: Callable[[], int | None], folder: Path) -> None:
    """Poll until the condition holds; ``ended`` returns the process's exit status."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if ended() is not None and not condition():
            said = (folder / "output.log").read_text(errors="replace").strip()
            raise RuntimeError(f"{folder.name} ended with {ended()}:\n{said[-2000:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder.name} did not come up within {PATIENCE:g} s")
        time.sleep(0.1)


def rounds(node: ChaosNode) -> list[tuple[int, int]]:
    return [(record.round, record.policy_step) for record in read_records(node.run_folder)]


def _found(seed: ChaosNode) -> tuple[bytes, str]:
    signed = create_swarm(seed.configure({}), name="chaos", task_set="tiny", epoch_seconds=2.0)
    (seed.run_folder / "manifest.swarm").write_bytes(signed)
    seed.start()
    status = seed.run_folder / "status.json"
    wait_for(status.exists, lambda: seed.status, seed.folder)
    return signed, str(json.loads(status.read_text())["addresses"][0])


def _listen(world: World, folder: Path, side: int, address: str) -> subprocess.Popen[bytes]:
    folder.mkdir()
    words = ["listener", str(folder), world.address(side), address, "no" if side else "yes"]
    with (folder / "output.log").open("wb") as output:
        return _begun(world, side, words, output)
