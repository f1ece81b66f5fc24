"""A node refuses input that it cannot use, and loses nothing over it."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import pytest
from cases import CASES, Case
from commands import PATIENCE, QUICK, Command

from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder

pytestmark = pytest.mark.processes

DISK_KIB = 8192


@dataclass(frozen=True)
class Ending:
    """How the process of a case ended."""

    status: int
    err: list[str]
    intact: bool


@pytest.fixture(scope="module")
def endings(
    stopped: Command, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Case], Ending]]:
    """Runs all cases, two at a time, and gives each test its own."""
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:

        def run(case: Case, folder: Path) -> Ending:
            shutil.copytree(stopped.run.root, folder / "swarm-run")
            node = RunFolder(folder / "swarm-run")
            case.change(node)
            before = learned(node)
            options = case.options
            if case.occupied:
                taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
                port = taken.getsockname()[1]
                options = (f'--set=network.listen=["/ip4/127.0.0.1/tcp/{port}"]',)
            command = Command(folder, case.command, *QUICK, *options, forked=True)
            stack.callback(command.close)
            status = command.wait()
            if case.full:
                intact = Checkpoints(node.checkpoints).load_latest() is not None
            else:
                intact = before.items() <= learned(node).items()
            return Ending(status, command.err, intact)

        futures = {}
        for case in CASES:
            folder = tmp_path_factory.mktemp("case")
            if case.full and not mount(folder, stack):
                continue
            futures[case] = pool.submit(run, case, folder)

        def ending(case: Case) -> Ending:
            if case not in futures:
                pytest.skip("no disk of its own can be mounted here")
            return futures[case].result(PATIENCE)

        yield ending


def mount(folder: Path, stack: ExitStack) -> bool:
    """Put a small disk at ``folder``, where this machine lets us."""
    disk = ["mount", "-t", "tmpfs", "-o", f"size={DISK_KIB}k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(disk, capture_output=True).returncode:
        return False
    stack.callback(subprocess.run, ["umount", "-l", str(folder)], check=True)
    return True


def learned(folder: RunFolder) -> dict[str, str]:
    """Digests of all that a node knows and is."""
    files = [*folder.checkpoints.rglob("*"), folder.identity, folder.manifest, folder.metrics]
    return {str(f): sha256(f.read_bytes()).hexdigest() for f in files if f.is_file()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_is_refused_in_one_line_with_the_remedy_and_nothing_is_lost(
    case: Case, endings: Callable[[Case], Ending]
) -> None:
    ending = endings(case)
    (line,) = [line for line in ending.err if not (case.full and " failed: " in line)]
    assert line.startswith("error: ")
    assert [word for word in case.words if word not in line] == []
    assert ending.status == case.status
    assert ending.intact
