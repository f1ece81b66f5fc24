"""A node survives damaged files, killed helpers, absent peers and its own end."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from node.storage.checkpoints import Checkpoints
from swarm.pool import LEAST_USES
from tests.end_to_end.commands import GRACE_SECONDS, NOBODY, QUICK, ROOT, Command, join
from tests.end_to_end.watching import journal_rows

pytestmark = pytest.mark.processes

CLOCK_AHEAD = "import time\nreally = time.time\ntime.time = lambda: really() + 60\n"


def test_stopped_node_saves_its_round_and_leaves_no_process(stopped: Command) -> None:
    assert stopped.process.returncode == 0
    assert stopped.left == []
    assert stopped.run.holder() is None
    last = stopped.records()[-1].round
    assert (stopped.run.checkpoints / f"step-{last:08d}").is_dir()


def test_ordinary_run_logs_no_warnings_or_errors(stopped: Command) -> None:
    assert stopped.err == []
    assert stopped.odd_log_lines() == []
    assert " WARNING " not in stopped.run.log.read_text()


def test_interrupted_start_leaves_no_process(tmp_path: Path) -> None:
    with join(tmp_path, f"--peers={NOBODY}", "--set=network.start_timeout=60") as waiting:
        waiting.until(lambda: waiting.children("p2pd"))
        assert waiting.stop(signal.SIGINT) == 130
        assert waiting.left == []
        errors = [line for line in waiting.err if "; trying again for 60 s" not in line]
        assert errors in ([], ["", "Aborted!"], ["Aborted!"])


def test_node_reports_damage_and_absent_peers_once_and_resumes(stopped, tmp_path):
    shutil.copytree(stopped.run.root, tmp_path / "swarm-run")
    done = stopped.records()[-1].round
    newest = f"step-{done:08d}"
    damaged = tmp_path / "swarm-run" / "checkpoints" / newest / "learner.pt"
    damaged.write_bytes(damaged.read_bytes()[:100])
    (tmp_path / "swarm-run" / "journal.sqlite").write_bytes(b"no database at all")

    with join(tmp_path, f"--peers={NOBODY}", f"--rounds={done + 1}") as restart:
        assert restart.wait() == 0, restart.err
        assert restart.err == []
        out, records = restart.out, restart.records()
    text = "\n".join(out)
    for once in (
        "file is not a database",
        "recovered from the backup journal.sqlite.backup",
        f"{newest} is damaged",
        "using the earlier checkpoint",
        "no named peer answers",
    ):
        assert text.count(once) == 1, text
    logged = restart.run.log.read_text()
    shown_alone = "round ", "starting"  # Slow stages print "starting".
    assert [x for x in out if x not in logged and not x.startswith(shown_alone)] == []
    assert text.count("resuming from round ") == 1
    assert records[-1].round == done + 1
    assert records[-1].counters["dials_failed"] >= 1
    assert restart.odd_log_lines() == []


def test_sighup_stops_a_node_with_a_checkpoint(tmp_path: Path) -> None:
    with join(tmp_path) as node:
        node.until(lambda: len(node.records()) >= 1)
        assert node.stop(signal.SIGHUP) == 0
        assert node.left == []
    last = node.records()[-1].round
    assert (node.run.checkpoints / f"step-{last:08d}").is_dir()
    assert "stopping after this round (SIGHUP)" in node.run.log.read_text()


OVERLAP = ("--set=schedule.mode=async", "--set=schedule.max_staleness=2")


@pytest.mark.parametrize("share", [0, 1])
def test_killed_node_resumes_and_trains_on_each_group_once(tmp_path, share):
    options = (*OVERLAP, f"--set=schedule.oversample={share}")
    with join(tmp_path, *options) as first:
        first.until(lambda: len(first.records()) >= 5)
        engines = first.children("node.engines.process.worker")
        assert engines
        first.process.kill()
        first.wait()
        begun, used = _own(tmp_path)
        assert begun and not begun & used
        done = len(first.records())

    with join(tmp_path, *options) as second:
        second.until(lambda: len(second.records()) >= done + 5)
        second.process.send_signal(signal.SIGTERM)
        assert second.wait() == 0
        assert not second.odd_log_lines()
        pending, trained = _own(tmp_path)
        assert begun <= pending | trained and used <= trained and not pending & trained
    assert not any(engine.is_running() for engine in engines)


def _own(folder: Path) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """Return the keys of unfinished local groups and of local groups in updates."""
    tables = ("begun", "used WHERE author=x''")
    queries = (f"SELECT epoch, number FROM {table}" for table in tables)
    begun, used = (set(journal_rows(folder / "swarm-run", query)) for query in queries)
    return begun, used


FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo full > /dev/shm/filler"
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c", f'{FULL} && exec "$@"', "sh")


@pytest.mark.parametrize("command", ["bootstrap", "join", "demo"])
def test_command_reports_full_shared_memory_before_writing(command, tmp_path):
    probe = shutil.which("unshare") and subprocess.run([*OWN_MOUNTS, "true"], capture_output=True)
    if not probe or probe.returncode:
        pytest.skip("this machine allows no mount")
    with Command(tmp_path, command, beneath=OWN_MOUNTS) as node:
        assert node.wait() == 1
        (line,) = node.err
    assert "/dev/shm (No space left on device). Free some space there" in line
    assert list(tmp_path.iterdir()) == []


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = "--set=schedule.checkpoint_every=1"


def rank(command: Command, number: int) -> psutil.Process:
    children = psutil.Process(command.process.pid).children()
    (match,) = (child for child in children if child.environ().get("RANK") == str(number))
    return match


def test_two_rank_node_stops_with_a_lost_rank_and_resumes(tmp_path):
    with Command(tmp_path, "join", *QUICK, OFTEN, under=TORCHRUN) as first:
        saved = Checkpoints(first.run.checkpoints)
        trained = first.until(lambda: [r.round for r in first.records() if r.policy_step])[0]
        first.until(lambda: max(saved.steps(), default=0) >= trained)
        started = psutil.Process(first.process.pid).children(recursive=True)
        rank(first, 1).send_signal(signal.SIGKILL)
        assert first.wait() == 1
        assert not psutil.wait_procs(started, timeout=GRACE_SECONDS)[1]
        (text,) = (line for line in first.err if line.startswith("error: "))
        assert "another rank has ended" in text and "last checkpoint is complete" in text
        done = saved.steps()[-1]

    rounds = f"--rounds={done + 1}"
    with Command(tmp_path, "join", *QUICK, OFTEN, rounds, under=TORCHRUN) as second:
        assert second.wait() == 0, second.err
        assert sum("rounds are done" in line for line in second.out) == 1, "only rank 0 prints it"
        assert second.records()[-1].round == done + 1
    loaded = saved.load_latest()
    assert loaded is not None and loaded.state["round"] == done + 1
    assert loaded.state["policy_step"] > 0, "both ranks trained and the second run kept the result"


LOCAL, ROUNDS, SAVED = 128, 60, 8
MANY = (
    f"--set=mixture.local={LOCAL}",
    "--set=mixture.external=0",
    "--set=engine.group_size=2",
    "--set=engine.max_new_tokens=2",
    f"--set=schedule.checkpoint_every={SAVED}",
    f"--rounds={ROUNDS}",
)


def test_checkpoints_remove_obsolete_use_records(tmp_path):
    with join(tmp_path, *MANY) as node:
        assert node.wait() == 0, node.err
        ((rows, uses),) = journal_rows(node.run.root, "SELECT count(*), max(use) FROM used")
    assert uses == LOCAL * ROUNDS > LEAST_USES + 2 * SAVED * LOCAL
    assert rows <= LEAST_USES + SAVED * LOCAL


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    """Start a node for the last tests of this file; it occupies a core."""
    with join(tmp_path_factory.mktemp("node")) as command:
        command.until(lambda: len(command.records()) >= 4)
        yield command


def test_second_process_is_refused_and_the_first_continues(node: Command) -> None:
    with join(node.run.root.parent) as second:
        assert second.wait() == 1
        (line,) = second.err
    assert f"used by process {node.process.pid}" in line and "use another folder" in line
    done = len(node.records())
    node.until(lambda: len(node.records()) > done)


def test_join_rejects_a_clock_that_is_a_minute_off(node, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CLOCK_AHEAD)
    (address,) = re.findall(r"/ip4/127.0.0.1/tcp/\d+/p2p/\w+", "\n".join(node.out))
    with join(tmp_path, f"--peers={address}", PYTHONPATH=f"{tmp_path}:{ROOT}") as joiner:
        assert joiner.wait() == 1
        (line,) = joiner.err
    (offset,) = re.findall(r"at least (\d+\.\d) s apart, more than 3 s; set the clock", line)
    assert 48.0 < float(offset) <= 60.0, "60 s minus the duration of the request"


def test_node_restarts_and_counts_killed_daemon_and_verifier(node: Command) -> None:
    (daemon,) = node.children("p2pd")
    (verifier,) = node.children("node.tasks.verifier.worker")
    daemon.kill()
    verifier.kill()

    def counted() -> bool:
        counters = node.records()[-1].counters
        return "daemon_restarts" in counters and any("verifier_restarts" in n for n in counters)

    node.until(counted)
    node.until(lambda: node.children("p2pd"))
    done = len(node.records())
    node.until(lambda: len(node.records()) > done)
