"""Start, follow and stop a node in the background with separate commands."""

import json
import os
import signal
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder, present_status
from tests.end_to_end.commands import NOBODY, QUICK, Command

pytestmark = pytest.mark.processes


class Shell:
    """Runs commands in a folder and always stops the node in it.

    The commands are forked; the nodes that they start are separate processes.
    """

    def __init__(self, folder: Path) -> None:
        self.node = RunFolder(folder / "swarm-run")
        self._folder = folder
        self._nodes = [self.node]
        self._commands = ExitStack()

    def start(self, *arguments: str) -> Command:
        command = Command(self._folder, *arguments, forked=True)
        self._commands.callback(command.close)
        return command

    def __call__(self, *arguments: str) -> tuple[int, list[str], list[str]]:
        command = self.start(*arguments)
        return command.wait(), command.out, command.err

    def detached(self, *arguments: str) -> psutil.Process:
        status, out, err = self("join", "--detach", "--json", *QUICK, *arguments)
        assert status == 0, err
        told = json.loads(out[-1])
        assert told["running"] and told["addresses"] and told["log"] == str(self.node.log)
        return psutil.Process(told["pid"])

    def elsewhere(self, folder: str) -> None:
        self._nodes.append(RunFolder(self._folder / folder))

    def close(self) -> None:
        for node in self._nodes:
            if (pid := node.holder()) is not None:
                os.kill(pid, signal.SIGKILL)
        self._commands.close()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with closing(Shell(tmp_path)) as shell:
        yield shell


WAITS = "waiting until the node runs; Ctrl-C ends it"


def test_logs_follow_a_detached_node_until_it_stops(shell: Shell) -> None:
    process = shell.detached()
    assert os.getsid(process.pid) == process.pid, "closing a terminal does not end the node"
    for arguments in (("join", "--detach"), ("bootstrap", "--detach"), ("join",)):
        status, _, err = shell(*arguments, *QUICK)
        assert status == 1, "a second node is refused"
        (line,) = [each for each in err if each != WAITS]
        assert line.startswith("error: the run folder is already used by process")
    assert present_status(shell.node)["pid"] == process.pid
    follower = shell.start("logs", "-f", "-n", "1000")
    follower.until(lambda: any("round 4 |" in line for line in follower.out))
    children = process.children(recursive=True)
    status, out, _ = shell("stop", "--json")
    told = json.loads(out[-1])
    assert (status, told["pid"], told["state"]) == (0, process.pid, "stopped")
    assert told["round"] == present_status(shell.node)["record"]["round"] >= 4
    newest = Checkpoints(shell.node.checkpoints).steps()[-1]
    assert newest == told["round"], "the node finishes its round and saves a checkpoint"
    assert told["checkpoint"] == str(Checkpoints(shell.node.checkpoints).path(newest))
    assert follower.wait() == 0
    assert any("stopping after this round" in line for line in follower.out)
    done = f"{newest} rounds are done; run the same command to resume"
    assert follower.out[-1].endswith(f": {done}"), "the line has a timestamp, like every log line"
    assert psutil.wait_procs(children, timeout=120)[1] == []

    status, out, _ = shell("stop")
    assert status == 0 and out[0] == f"no running node in {shell.node.root}"
    assert f"round is {newest}" in out[1]


def test_detached_observer_status_shows_its_page_url(shell: Shell) -> None:
    shell.detached()
    (address, *_) = present_status(shell.node)["addresses"]
    opts = ("--config", "watch")
    assert shell("init", "watch")[0] == 0
    shell.elsewhere("watch")
    status, out, err = shell("observe", "--detach", "--json", "--peers", address, *opts)
    assert status == 0, err
    told = json.loads(out[-1])
    assert told["running"] and told["addresses"] == [], "an observer announces no addresses"
    with urllib.request.urlopen(f"{told['public']}data/swarm.json", timeout=120) as answer:
        assert json.load(answer)["swarm"]["id"] == present_status(shell.node)["swarm_id"]
    status, out, _ = shell("status", *opts)
    assert any(line.split() == ["public", told["public"]] for line in out)
    assert shell("stop", *opts)[0] == 0
    assert shell("stop", "--now")[0] == 0
    assert shell.node.holder() is None
    status, out, _ = shell("status", *opts)
    assert out[0].startswith("state     stopped") and not any("http" in line for line in out)

    status, _, err = shell("observe", "--detach", "--peers", address)
    (message,) = [each for each in err if each != WAITS]
    assert status == 2 and "--config" in message


@pytest.mark.parametrize(
    ("fault", "status", "words"),
    [
        ('network.listen=["/ip4/127.0.0.1/tcp/{}"]', 1, "another process uses port"),
        ("learner.lrr=1", 2, "did you mean learner.lr?"),
        ("policy.model=/nowhere/model", 2, "no such folder"),
    ],
    ids=["occupied", "mistyped", "unloadable"],
)
def test_detach_reports_failed_start(shell: Shell, fault: str, status: int, words: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        option = f"--set={fault.format(taken.getsockname()[1])}"
        code, _, err = shell("join", "--detach", *QUICK, option)
    assert code == status
    assert words in err[-1] and err[-1].startswith("error: ")
    if shell.node.log.exists():  # An unreadable config fails before the log exists.
        assert shell.node.log.read_text().count(words) == 1, "the log has the error once"
    assert shell.node.holder() is None


def test_ctrl_c_during_detach_stops_the_node(shell: Shell) -> None:
    waiting = shell.start("join", "--detach", *QUICK, "--peers", NOBODY)
    waiting.until(lambda: shell.node.holder() is not None)
    assert waiting.stop(signal.SIGINT) != 0
    assert waiting.left == []
    assert shell.node.holder() is None


def test_detach_succeeds_when_a_node_finishes_its_rounds(shell: Shell) -> None:
    for _ in range(2):
        status, out, err = shell("join", "--detach", "--rounds=1", *QUICK)
        assert status == 0, err
        assert any("process" in line or "has ended" in line for line in out)
        assert shell("logs", "-f", "-n", "0")[0] == 0
        assert shell.node.holder() is None
