"""What a node lives through: damage on its disk, lost helpers, absent peers, and its own end."""

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
        told = [line for line in waiting.err if "; trying again for 60 s" not in line]
        assert told in ([], ["", "Aborted!"], ["Aborted!"])


def test_damage_on_disk_and_absent_peers_are_said_once_and_the_run_goes_on(stopped, tmp_path):
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
        "recovered from the backup journal.sqlite.backup",
        f"{newest} is damaged",
        "using the earlier checkpoint",
        "no named peer answers",
    ):
        assert said.count(once) == 1, said
    logged = again.run.log.read_text()
    shown_alone = "round ", "starting"  # the second only where a stage takes seconds
    assert [x for x in out if x not in logged and not x.startswith(shown_alone)] == []
    assert said.count("resuming from round ") == 1
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
    assert "stopping cleanly (SIGHUP)" in node.run.log.read_text()


OVERLAP = ("--set=schedule.mode=async", "--set=schedule.max_staleness=2")


@pytest.mark.parametrize("share", [0, 1])
def test_a_killed_node_goes_on_with_its_groups_and_trains_on_none_twice(tmp_path, share):
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
        left, trained = _own(tmp_path)
        assert begun <= left | trained and used <= trained and not left & trained
    assert not any(engine.is_running() for engine in engines)


def _own(folder: Path) -> tuple[set[tuple[int, int]], set[tuple[int, int]]]:
    """The own groups that are begun, and those that an update took."""
    tables = ("begun", "used WHERE author=x''")
    queries = (f"SELECT epoch, number FROM {table}" for table in tables)
    begun, used = (set(journal_rows(folder / "swarm-run", query)) for query in queries)
    return begun, used


FULL = "mount -t tmpfs -o size=4k tmpfs /dev/shm && echo full > /dev/shm/filler"
OWN_MOUNTS = ("unshare", "--mount", "sh", "-c", f'{FULL} && exec "$@"', "sh")


@pytest.mark.parametrize("command", ["bootstrap", "join", "demo"])
def test_full_shared_memory_is_named_with_the_remedy_before_anything_is_made(command, tmp_path):
    tried = shutil.which("unshare") and subprocess.run([*OWN_MOUNTS, "true"], capture_output=True)
    if not tried or tried.returncode:
        pytest.skip("no disk of its own can be mounted here")
    with Command(tmp_path, command, beneath=OWN_MOUNTS) as node:
        assert node.wait() == 1
        (line,) = node.err
    assert "/dev/shm (No space left on device). Free some space there" in line
    assert list(tmp_path.iterdir()) == []


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
OFTEN = "--set=schedule.checkpoint_every=1"


def rank(command: Command, number: int) -> psutil.Process:
    children = psutil.Process(command.process.pid).children()
    (found,) = (child for child in children if child.environ().get("RANK") == str(number))
    return found


def test_a_node_over_two_ranks_stops_with_a_rank_and_goes_on_from_its_checkpoint(tmp_path):
    with Command(tmp_path, "join", *QUICK, OFTEN, under=TORCHRUN) as first:
        saved = Checkpoints(first.run.checkpoints)
        trained = first.until(lambda: [r.round for r in first.records() if r.policy_step])[0]
        first.until(lambda: max(saved.steps(), default=0) >= trained)
        started = psutil.Process(first.process.pid).children(recursive=True)
        rank(first, 1).send_signal(signal.SIGKILL)
        assert first.wait() == 1
        assert not psutil.wait_procs(started, timeout=GRACE_SECONDS)[1]
        (said,) = (line for line in first.err if line.startswith("error: "))
        assert "another rank has ended" in said and "last checkpoint is complete" in said
        done = saved.steps()[-1]

    rounds = f"--rounds={done + 1}"
    with Command(tmp_path, "join", *QUICK, OFTEN, rounds, under=TORCHRUN) as second:
        assert second.wait() == 0, second.err
        assert sum("rounds are done" in line for line in second.out) == 1, "rank 1 says nothing"
        assert second.records()[-1].round == done + 1
    loaded = saved.load_latest()
    assert loaded is not None and loaded.state["round"] == done + 1
    assert loaded.state["policy_step"] > 0, "both ranks have learned, and the second run kept it"


LOCAL, ROUNDS, SAVED = 128, 60, 8
MANY = (
    f"--set=mixture.local={LOCAL}",
    "--set=mixture.external=0",
    "--set=engine.group_size=2",
    "--set=engine.max_new_tokens=2",
    f"--set=schedule.checkpoint_every={SAVED}",
    f"--rounds={ROUNDS}",
)


def test_with_each_checkpoint_a_node_forgets_the_uses_that_no_later_start_needs(tmp_path):
    with join(tmp_path, *MANY) as node:
        assert node.wait() == 0, node.err
        ((rows, uses),) = journal_rows(node.run.root, "SELECT count(*), max(use) FROM used")
    assert uses == LOCAL * ROUNDS > LEAST_USES + 2 * SAVED * LOCAL
    assert rows <= LEAST_USES + SAVED * LOCAL


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
    assert f"used by process {node.process.pid}" in line and "use another folder" in line
    done = len(node.records())
    node.until(lambda: len(node.records()) > done)


def test_a_clock_a_minute_off_is_named_by_the_node_that_joins(node, tmp_path):
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
