import asyncio
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from unittest.mock import AsyncMock, Mock

import pytest

from node.errors import NodeError
from node.run.background import stop_node
from node.run.node import BaselineDialogue, ended
from node.run.status import STOPS, RunOptions, stopping
from node.storage.run_folder import STOPPING, RunFolder, present_status
from node.threads import LoopThread
from tests.node.monitor.test_live import Paper
from tests.node.programs import ROOT, until

PATIENCE = 300.0
NODE = """
import sys
import time
from pathlib import Path
from node.run.status import stopping
from node.run.status import StatusFile
from node.storage.run_folder import RunFolder

folder = RunFolder(Path(sys.argv[1]))
status, round_ends = StatusFile(folder), folder.root / "round-ends"
with stopping(print, status.stop) as stop, folder.locked():
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
ORDERLY = "stopping cleanly (SIGTERM)"


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run").create()
    folder.write_status({"state": "stopped"})
    return folder


@pytest.fixture
def node(folder):
    environment, pipe = {**os.environ, "PYTHONPATH": str(ROOT)}, subprocess.PIPE
    command = [sys.executable, "-c", NODE, str(folder.root)]
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
        try:
            assert process.stdout.readline() == "working\n", process.stderr.read()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("lingers", [False, True])
def test_stop_signals_a_node_once_and_waits_for_its_exit(folder, node, lingers):
    if lingers:
        (folder.root / "lingers").touch()
    (folder.root / "round-ends").touch()
    assert stop_node(folder) == node.pid and folder.holder() is None and node.poll() == 0
    assert node.communicate(timeout=PATIENCE)[0].splitlines() == [ORDERLY, "in order"]


def test_concurrent_stops_do_not_interrupt_the_round(folder, node):
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(stop_node, folder)
        until(lambda: present_status(folder)["state"] == STOPPING, PATIENCE)
        second = pool.submit(stop_node, folder)
        with pytest.raises(TimeoutError):
            second.result(timeout=0.5)
        (folder.root / "round-ends").touch()
        assert first.result() == second.result() == node.pid
    assert node.communicate(timeout=PATIENCE)[0].splitlines()[-1] == "in order"


@pytest.mark.parametrize("told_before", [False, True])
def test_stop_now_interrupts_the_round(folder, node, told_before):
    with ThreadPoolExecutor(2) as pool:
        if told_before:
            pool.submit(stop_node, folder)
            until(lambda: present_status(folder)["state"] == STOPPING, PATIENCE)
        stopped = pool.submit(stop_node, folder, now=True)
        try:
            out, err = node.communicate(timeout=PATIENCE)
        finally:
            node.kill()  # ends the waiting thread
        assert stopped.result() == node.pid
    assert out.splitlines() == [ORDERLY, "stopping now (SIGTERM)"]
    assert "KeyboardInterrupt" in err


def test_stop_handles_an_absent_or_forbidden_process(folder, monkeypatch):
    assert [stop_node(folder), stop_node(folder, now=True)] == [None, None]
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))
    with folder.locked():
        with pytest.raises(NodeError, match=f"{os.getpid()}.*as root"):
            stop_node(folder)
        folder.lock_file.write_bytes(b"")
        with pytest.raises(NodeError, match="run the command again"):  # no process id yet
            stop_node(folder)


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPS)
def test_signal_before_work_interrupts_with_a_message(number, capsys):
    with pytest.raises(KeyboardInterrupt), stopping():
        press(number)
    assert capsys.readouterr().out == f"stopping now ({number.name})\n"


@pytest.mark.parametrize("number", STOPS)
def test_signal_during_work_finishes_round_and_cleanup(number, capsys):
    with stopping() as stop:
        with stop.working("stopping after this round"):
            press(number)
            assert stop.is_set()
        press(number)
    hint = "; press Ctrl-C again to force quit" if number is signal.SIGINT else ""
    assert capsys.readouterr().out == f"stopping after this round{hint} ({number.name})\n"


def test_the_second_signal_interrupts_the_round_once():
    with stopping() as stop:
        with pytest.raises(KeyboardInterrupt), stop.working():
            press()
            press()
        press()


@pytest.fixture
def loop():
    thread = LoopThread("test")
    yield thread
    thread.close()


def test_interrupted_wait_lasts_until_cleanup_is_done(loop, monkeypatch):
    steps, started, result = [], threading.Event(), Future.result

    def waited(future):
        threading.Thread(target=lambda: started.wait() and press()).start()
        return result(future)

    async def work():
        try:
            started.set()
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            steps.append("put back")

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), stopping():
        patch.setattr(Future, "result", waited)
        loop.call(work())
    assert steps == ["put back"]
    failing = AsyncMock(side_effect=TimeoutError("of the work itself"))
    with pytest.raises(TimeoutError, match="of the work itself"):
        loop.call(failing())


def test_finished_node_says_how_to_resume():
    again = "run the same command to resume"
    more = "continue with a larger --rounds, or with --rounds 0 until you stop it"
    for limit in (0, 20):
        assert ended(1, limit) == f"1 round is done; {again}"
        assert ended(12, limit) == f"12 rounds are done; {again}"
    assert ended(1, 1) == f"1 round is done; {more}"
    assert ended(12, 12) == f"12 rounds are done; {more}"
    assert ended(1012, 5) == f"1012 rounds are done, of the 5 asked for; {more}"


def test_dialogue_needs_input_and_passes_ctrl_c_through(monkeypatch):
    trial = Mock(run=lambda *_: Mock(lines=list, settings=lambda: {"learner.lr": 0.1}))
    interrupted = Paper()
    interrupted.readline = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(sys, "stdout", Paper())
    for keyboard, error in ((Paper(), NodeError), (interrupted, KeyboardInterrupt)):
        monkeypatch.setattr(sys, "stdin", keyboard)
        with pytest.raises(error):
            BaselineDialogue(RunOptions(), Mock(), print)(trial)
