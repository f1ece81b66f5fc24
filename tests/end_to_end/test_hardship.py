"""What a node lives through: damage on its disk, lost helpers, absent peers, and its own end."""

from __future__ import annotations

import re
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.commands import NOBODY, ROOT, Command, join

pytestmark = pytest.mark.processes

CLOCK_AHEAD = "import time\nreally = time.time\ntime.time = lambda: really() + 60\n"


def test_a_node_ends_with_its_round_and_leaves_nothing_running(stopped: Command) -> None:
    assert stopped.process.returncode == 0
    assert stopped.left == []
    assert stopped.run.holder() is None
    last = stopped.records()[-1].round
    assert (stopped.run.checkpoints / f"step-{last:08d}").is_dir()


def test_an_ordinary_run_has_nothing_to_complain_about(stopped: Command) -> None:
    assert stopped.err == []
    assert stopped.odd_log_lines() == []
    assert " WARNING " not in stopped.run.log.read_text()


def test_a_start_that_is_interrupted_leaves_nothing_running(tmp_path: Path) -> None:
    with join(tmp_path, f"--peers={NOBODY}", "--set=network.start_timeout=60") as waiting:
        waiting.until(lambda: waiting.children("p2pd"))
        assert waiting.stop(signal.SIGINT) == 130
        assert waiting.left == []
        assert waiting.err in ([], ["", "Aborted!"], ["Aborted!"])


def test_damage_on_disk_and_absent_peers_are_said_once_and_the_run_goes_on(
    stopped: Command, tmp_path: Path
) -> None:
    shutil.copytree(stopped.run.root, tmp_path / "swarm-run")
    done = stopped.records()[-1].round
    newest = f"step-{done:08d}"
    damaged = tmp_path / "swarm-run" / "checkpoints" / newest / "learner.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    (tmp_path / "swarm-run" / "journal.sqlite").write_bytes(b"no database at all")

    with join(tmp_path, f"--peers={NOBODY}", f"--rounds={done + 1}") as again:
        assert again.wait() == 0, again.err
        assert again.err == []
        out, records = again.out, again.records()
    said = "\n".join(out)
    for once in (
        "file is not a database",
        "went on from the backup journal.sqlite.backup",
        f"{newest} is damaged",
        "using the earlier checkpoint",
        "none of the peers named answers",
    ):
        assert said.count(once) == 1, said
    logged = again.run.log.read_text()
    assert [line for line in out if line not in logged and line[:6] != "round "] == []
    assert said.count("goes on from round ") == 1
    assert records[-1].round == done + 1
    assert records[-1].counters["dials_failed"] >= 1
    assert again.odd_log_lines() == []


def test_a_closed_terminal_ends_a_node_after_its_round_with_a_checkpoint(tmp_path: Path) -> None:
    with join(tmp_path) as node:
        node.until(lambda: len(node.records()) >= 1)
        assert node.stop(signal.SIGHUP) == 0
        assert node.left == []
    last = node.records()[-1].round
    assert (node.run.checkpoints / f"step-{last:08d}").is_dir()
    assert "stopping in order; once more stops at once (SIGHUP)" in node.run.log.read_text()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """A node that works all the while; the tests of it come last, as it takes a core."""
    with join(tmp_path_factory.mktemp("node")) as command:
        command.until(lambda: len(command.records()) >= 4)
        yield command


def test_a_second_process_in_its_folder_is_refused_and_the_first_goes_on(node: Command) -> None:
    with join(node.run.root.parent) as second:
        assert second.wait() == 1
        (line,) = second.err
    assert f"used by process {node.process.pid}" in line and "folder of its own" in line
    done = len(node.records())
    node.until(lambda: len(node.records()) > done)


def test_a_clock_a_minute_off_is_named_by_the_node_that_joins(
    node: Command, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(CLOCK_AHEAD)
    (address,) = re.findall(r"/ip4/127.0.0.1/tcp/\d+/p2p/\w+", "\n".join(node.out))
    with join(tmp_path, f"--peers={address}", PYTHONPATH=f"{tmp_path}:{ROOT}") as late:
        assert late.wait() == 1
        (line,) = late.err
    (apart,) = re.findall(r"at least (\d+\.\d) s apart, more than 3 s; set the clock", line)
    assert 48.0 < float(apart) <= 60.0, "never more, and less by the time that the question took"


def test_a_killed_daemon_and_a_killed_verifier_are_replaced_and_counted(node: Command) -> None:
    (daemon,) = node.children("p2pd")
    (judge,) = node.children("node.tasks.verifier.worker")
    daemon.kill()
    judge.kill()

    def counted() -> bool:
        counters = node.records()[-1].counters
        return "daemon_restarts" in counters and any("verifier_restarts" in n for n in counters)

    node.until(counted)
    node.until(lambda: node.children("p2pd"))
    done = len(node.records())
    node.until(lambda: len(node.records()) > done)
