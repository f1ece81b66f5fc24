"""A swarm for chaos and for the soak: a seed, nodes on both sides, and those who listen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from node.config.config import Config, write_config
from node.monitor.history import read_records
from node.network.founding import found_swarm
from protocol.identity import Identity
from tests.chaos.crew import ROOT, ChaosNode
from tests.chaos.world import World

PATIENCE = 600.0
EPOCH_SECONDS = 2.0


@dataclass(slots=True)
class Listening:
    """A listener's process and its folder."""

    folder: Path
    process: subprocess.Popen[bytes]


@dataclass(slots=True)
class Crowd:
    """Everybody; ``authors`` are the keys of ``nodes``, in their order."""

    seed: ChaosNode
    nodes: list[ChaosNode]
    authors: list[bytes]
    listeners: list[Listening]
    signed: bytes

    @property
    def roots(self) -> list[int]:
        """Processes beside the nodes and this one, all that belongs to them being below."""
        return [self.seed.pid, *(each.process.pid for each in self.listeners), os.getpid()]


@contextmanager
def crowd(world: World, folder: Path, nodes: int, *, hurt: bool, pause: float) -> Iterator[Crowd]:
    """Start everybody and wait until every node has done a round; end them all afterwards.

    Args:
        hurt: whether there are listeners, and a small disk under the first node.
        pause: seconds before each round.

    Raises:
        RuntimeError, TimeoutError: somebody did not come up.
    """
    seed = ChaosNode(world, folder / "seed", "seed", 0, command="bootstrap")
    members, listeners = [], []
    try:
        signed, address = _found(world, seed)
        if hurt:
            for side in (0, 1):
                place = folder / f"listener-{side}"
                listeners.append(_listen(world, place, side, address))
        authors = []
        for number in range(nodes):
            name = f"node-{number + 1}"
            node = ChaosNode(world, folder / name, name, number % 2, pause=pause)
            members.append(node)
            if hurt and number == 0:
                world.small_disk(node.run_folder)
            authors.append(node.prepare(number, [address]))
            node.start()
        for node in members:
            wait_for(lambda n=node: n.at_work, lambda n=node: n.status, node.folder)
        for each in listeners:
            wait_for((each.folder / "ready").exists, each.process.poll, each.folder)
        yield Crowd(seed, members, authors, listeners, signed)
    finally:
        for each in listeners:
            each.process.kill()
            each.process.wait()
        for node in [*members, seed]:
            node.close()


def wait_for(condition: Callable[[], bool], ended: Callable[[], int | None], folder: Path) -> None:
    """Poll until the process in a folder is as it should be.

    Args:
        ended: its exit status; None while it runs.

    Raises:
        RuntimeError: it has ended instead; what it printed last is in the message.
        TimeoutError: it was not so in ten minutes.
    """
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if ended() is not None and not condition():
            said = (folder / "output.log").read_text(errors="replace").strip()
            raise RuntimeError(f"{folder.name} ended with {ended()}:\n{said[-2000:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{folder.name} did not come up within {PATIENCE:g} s")
        time.sleep(0.1)


def rounds(node: ChaosNode) -> list[tuple[int, int]]:
    """(round, policy step) of every whole line that a node wrote."""
    return [(record.round, record.policy_step) for record in read_records(node.run_folder)]


def _found(world: World, seed: ChaosNode) -> tuple[bytes, str]:
    seed.run_folder.mkdir()
    identity = Identity.create(seed.run_folder / "identity.key")
    signed = found_swarm(identity, name="chaos", catalogue="tiny", epoch_seconds=EPOCH_SECONDS)
    (seed.run_folder / "manifest.swarm").write_bytes(signed)
    listen = [f"/ip4/{world.address(0)}/tcp/0"]
    settings = {"node.name": "seed", "network.listen": listen, "network.start_timeout": 120.0}
    write_config(seed.run_folder / "node.toml", Config.with_overrides(settings))
    seed.start()
    status = seed.run_folder / "status.json"
    wait_for(status.exists, lambda: seed.status, seed.folder)
    return signed, str(json.loads(status.read_text())["addresses"][0])


def _listen(world: World, folder: Path, side: int, address: str) -> Listening:
    folder.mkdir()
    words: Sequence[str] = (str(folder), world.address(side), address, "no" if side else "yes")
    with (folder / "output.log").open("wb") as output:
        process = subprocess.Popen(
            [*world.prefix(side), sys.executable, "-m", "tests.chaos.listener", *words],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
    return Listening(folder, process)
