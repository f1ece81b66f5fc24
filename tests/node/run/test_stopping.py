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
def test_a_node_is_told_once_and_waited_for_until_it_is_gone(folder, node, lingers):
    if lingers:
        (folder.root / "lingers").touch()
    (folder.root / "round-ends").touch()
    assert stop_node(folder) == node.pid and folder.holder() is None and node.poll() == 0
    assert node.communicate(timeout=PATIENCE)[0].splitlines() == [ORDERLY, "in order"]


def test_several_who_stop_a_node_do_not_cut_its_round_short(folder, node):
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
def test_now_does_not_wait_for_the_round(folder, node, told_before):
    with ThreadPoolExecutor(2) as pool:
        if told_before:
            pool.submit(stop_node, folder)
            until(lambda: present_status(folder)["state"] == STOPPING, PATIENCE)
        stopped = pool.submit(stop_node, folder, now=True)
        try:
            out, err = node.communicate(timeout=PATIENCE)
        finally:
            node.kill()  # who waits for it goes on
        assert stopped.result() == node.pid
    assert out.splitlines() == [ORDERLY, "stopping now (SIGTERM)"]
    assert "KeyboardInterrupt" in err


def test_there_may_be_nobody_to_stop_or_one_who_may_not_be_told(folder, monkeypatch):
    assert [stop_node(folder), stop_node(folder, now=True)] == [None, None]
    monkeypatch.setattr(os, "kill", Mock(side_effect=PermissionError))
    with folder.locked():
        with pytest.raises(NodeError, match=f"{os.getpid()}.*as root"):
            stop_node(folder)
        folder.lock_file.write_bytes(b"")
        with pytest.raises(NodeError, match="run the command again"):  # its number is not told yet
            stop_node(folder)


def press(number=signal.SIGINT):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", STOPS)
def test_before_the_work_a_signal_interrupts_at_once_with_a_word(number, capsys):
    with pytest.raises(KeyboardInterrupt), stopping():
        press(number)
    assert capsys.readouterr().out == f"stopping now ({number.name})\n"


@pytest.mark.parametrize("number", STOPS)
def test_a_signal_during_the_work_lets_the_round_end_and_the_closing_is_left_alone(number, capsys):
    with stopping() as stop:
        with stop.working():
            press(number)
            assert stop.is_set()
        press(number)
    hint = "; press Ctrl-C again to force quit" if number is signal.SIGINT else ""
    assert capsys.readouterr().out == f"stopping cleanly{hint} ({number.name})\n"


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


def test_an_interrupted_wait_lasts_until_its_work_has_put_everything_back(loop, monkeypatch):
    steps, begun, result = [], threading.Event(), Future.result

    def waited(future):
        threading.Thread(target=lambda: begun.wait() and press()).start()
        return result(future)

    async def work():
        try:
            begun.set()
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


def test_a_node_that_ends_says_how_to_go_on():
    again = "run the same command to resume"
    more = "continue with a larger --rounds, or with --rounds 0 until you stop it"
    for asked in (0, 20):
        assert ended(1, asked) == f"1 round is done; {again}"
        assert ended(12, asked) == f"12 rounds are done; {again}"
    assert ended(1, 1) == f"1 round is done; {more}"
    assert ended(12, 12) == f"12 rounds are done; {more}"
    assert ended(1012, 5) == f"1012 rounds are done, of the 5 asked for; {more}"


def test_a_question_needs_an_answer_and_ctrl_c_stays_ctrl_c(monkeypatch):
    trial = Mock(run=lambda *_: Mock(lines=list, settings=lambda: {"learner.lr": 0.1}))
    interrupted = Paper()
    interrupted.readline = Mock(side_effect=KeyboardInterrupt)
    monkeypatch.setattr(sys, "stdout", Paper())
    for keyboard, error in ((Paper(), NodeError), (interrupted, KeyboardInterrupt)):
        monkeypatch.setattr(sys, "stdin", keyboard)
        with pytest.raises(error):
            BaselineDialogue(RunOptions(), Mock(), print)(trial)
