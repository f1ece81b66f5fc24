"""Fixtures that start real swarm processes and always stop them."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from node.demo import run
from node.demo.node_process import NodeProcess
from tests.end_to_end.commands import QUICK, Command
from tests.end_to_end.forked import ForkedNode

ENVIRONMENT = {"OMP_NUM_THREADS": "1"}
PATIENCE = 300.0


class Swarm:
    """Starts the processes of a swarm in one folder.

    First starts are forked; restarts run a command line.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack

    def seed(
        self, name: str = "seed", transport: str = run.DEFAULT_TRANSPORT
    ) -> tuple[NodeProcess, str]:
        with patch.object(run, "NodeProcess", ForkedNode):
            process = run.start_bootstrap(self.folder / name, ENVIRONMENT, transport)
        self._stack.callback(process.close)
        return process, process.wait_for_address(PATIENCE)

    def node(self, name: str, address: str, **overrides: Any) -> NodeProcess:
        settings = {
            "network.peers": [address],
            "node.threads": 1,
            "schedule.rounds": 0,
            "schedule.eval_tasks": 16,
            "monitor.live": False,
            **{key.replace("__", "."): value for key, value in overrides.items()},
        }
        with patch.object(run, "NodeProcess", ForkedNode):
            process = run.start_node(self.folder / name, name, settings, ENVIRONMENT)
        self._stack.callback(process.close)
        return process

    def again(self, process: NodeProcess, name: str = "join", *options: str) -> NodeProcess:
        """Restart a node in its run folder."""
        command = [name, "--config", str(process.folder / "node.toml"), *options]
        fresh = NodeProcess(command, process.folder, ENVIRONMENT)
        self._stack.callback(fresh.close)
        return fresh


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    with ExitStack() as stack:
        yield Swarm(tmp_path, stack)


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Provide a node that stopped after a few rounds alone. Tests must not change it."""
    with Command(tmp_path_factory.mktemp("stopped"), "join", *QUICK) as command:
        command.until(lambda: len(command.records()) >= 4)
        command.stop(signal.SIGTERM)
        yield command
