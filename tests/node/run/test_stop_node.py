"""Who stops a node from another process, on processes that hold a folder as a node does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.errors import NodeError
from node.monitor.present_status import STOPPING, present_status
from node.run.background import stop_node
from node.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[3]
PATIENCE = 300.0
NODE = """
import sys
import time
from pathlib import Path
from node.run.foreground import stopping
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
status, round_ends = StatusFile(folder), folder.root / "round-ends"
with stopping(status.stop_after(print)) as stop, folder.locked():
    status.start()
    with stop.working():
        print("working", flush=True)
        while not (stop.is_set() and round_ends.exists()):
            sum(range(5_000_000))  # in which no signal is handled, as in a step of the learner
    status.end()
print("in order", flush=True)
if (folder.root / "lingers").exists():
    time.sleep(1.0)
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run").create()
    folder.write_status({"state": "stopped"})
    return folder


@pytest.fixture
def node(folder: RunFolder) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", NODE, str(folder.root)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout.readline() == "working\n", process.stderr.read()
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_node_is_told_once_and_waited_for(folder, node):
    (folder.root / "round-ends").touch()
    assert stop_node(folder) == node.pid
    assert folder.holder() is None
    assert node.communicate(timeout=PATIENCE)[0].splitlines() == [
        "stopping in order; once more stops at once (SIGTERM)",
        "in order",
    ]


def test_a_process_that_has_let_go_of_its_folder_is_waited_for_until_it_is_gone(folder, node):
    (folder.root / "lingers").touch()
    (folder.root / "round-ends").touch()
    assert stop_node(folder) == node.pid
    assert node.poll() == 0


def test_several_who_stop_a_node_do_not_cut_its_round_short(folder, node):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stop_node, folder)
        until(lambda: present_status(folder)["state"] == STOPPING)
        second = pool.submit(stop_node, folder)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        (folder.root / "round-ends").touch()
        assert first.result() == second.result() == node.pid
    assert node.communicate(timeout=PATIENCE)[0].splitlines()[-1] == "in order"


@pytest.mark.parametrize("told_before", [False, True])
def test_now_does_not_wait_for_the_round(folder, node, told_before):
    with ThreadPoolExecutor(2) as pool:
        if told_before:
            pool.submit(stop_node, folder)
            until(lambda: present_status(folder)["state"] == STOPPING)
        stopped = pool.submit(stop_node, folder, now=True)
        try:
            out, err = node.communicate(timeout=PATIENCE)
        finally:
            node.kill()  # who waits for it goes on
        assert stopped.result() == node.pid
    assert out.splitlines() == [
        "stopping in order; once more stops at once (SIGTERM)",
        "stopping at once (SIGTERM)",
    ]
    assert "KeyboardInterrupt" in err


def test_there_may_be_nobody_to_stop(folder):
    assert stop_node(folder) is None
    assert stop_node(folder, now=True) is None


def test_a_process_that_may_not_be_told_is_named(folder, monkeypatch):
    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    with folder.locked(), pytest.raises(NodeError, match=f"{os.getpid()}.*as root"):
        stop_node(folder)


def test_a_holder_that_has_not_told_its_number_yet_is_not_signalled(folder):
    with folder.locked():
        folder.lock_file.write_bytes(b"")
        with pytest.raises(NodeError, match="ask again"):
            stop_node(folder)
