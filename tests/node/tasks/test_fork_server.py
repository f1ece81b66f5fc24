"""Workers forked from one process share its memory, and nothing else."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.sources.jsonl import file_digest
from node.tasks.task_set import Allowed, load_task_set
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from tests.node.programs import FORK_SERVER, ended, until, workers

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or sandbox_support().kind != "namespaces",
    reason="workers do not use a fork server",
)
TASK = TaskRef("gcd", 0, 1)
SEED = 4_711
"""Hash seed that identifies these workers and gives them a separate fork server."""


@pytest.fixture
def both(counters) -> Iterator[list[Verifier]]:
    """The two verifiers of a node: for local texts and for texts of peers."""
    tasks = load_task_set("tiny")
    options = {"counters": counters, "hash_seed": SEED}
    verifiers = [Verifier(tasks, outside=outside, **options) for outside in (False, True)]
    for verifier in verifiers:
        verifier.start()
    yield verifiers
    for verifier in verifiers:
        verifier.close()


def started() -> list[psutil.Process]:
    """Return the outermost process of each worker, oldest first."""
    ordered = sorted(workers(), key=lambda process: (process.create_time(), process.pid))
    return [x for x in ordered if x.environ().get("PYTHONHASHSEED") == str(SEED)]


def confined(worker: psutil.Process) -> psutil.Process:
    """Return the process that scores, below two processes that wait for it."""
    return worker.children(recursive=True)[-1]


def sockets(process: psutil.Process) -> set[str]:
    links = (str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir())
    return {link for link in links if link.startswith("socket")}


def namespaces(process: psutil.Process) -> set[str]:
    names = ("ipc", "mnt", "net", "pid", "user", "uts")
    return {str(Path(f"/proc/{process.pid}/ns/{name}").readlink()) for name in names}


@pytest.mark.usefixtures("both")
def test_both_workers_of_a_node_share_most_of_their_memory():
    own, outside = started()
    assert own.parent() == outside.parent()
    for worker in map(confined, (own, outside)):
        memory = worker.memory_full_info()
        assert memory.uss < memory.rss / 2


def test_workers_share_numeric_comparison_modules(tmp_path):
    """Without sharing, each new worker would load the modules for seconds."""
    file = tmp_path / "file.jsonl"
    file.write_text('{"prompt": "x?", "answer": "x + 1"}')
    levels = ('{"match":"numeric"}',)
    env = EnvSpec("sums", "jsonl", file_digest(file), levels, "{question}", "text")
    options = {"allowed": Allowed({"sums": file}), "hash_seed": SEED}
    with Verifier([env], outside=False, **options) as verifier:
        verifier.start()
        (outermost,) = started()
        memory = confined(outermost).memory_full_info()
    assert memory.rss > 50e6 and memory.uss < 0.3 * memory.rss


@pytest.mark.usefixtures("both")
def test_each_worker_has_its_own_sandbox_and_limits():
    server = started()[0].parent()
    own, outside = map(confined, started())
    processes = [psutil.Process(), own, outside]
    assert len(set().union(*map(namespaces, processes))) == 3 * len(namespaces(own))
    nice = psutil.Process().nice()
    assert (own.nice(), outside.nice()) == (nice, min(nice + 10, 19))
    for worker in (own, outside):
        assert worker.num_threads() == 1
        assert worker.rlimit(psutil.RLIMIT_AS) == (1 << 30, 1 << 30)
        assert worker.rlimit(psutil.RLIMIT_NPROC) == (0, 0)
        status = Path(f"/proc/{worker.pid}/status").read_text()
        assert "NoNewPrivs:\t1\n" in status and "Seccomp:\t2\n" in status
    assert server.num_threads() == 1, "a fork would never release a lock of another thread"
    assert server.rlimit(psutil.RLIMIT_AS) == psutil.Process().rlimit(psutil.RLIMIT_AS)


@pytest.mark.usefixtures("both")
def test_worker_holds_no_foreign_channels():
    own, outside = started()
    family = [own, *own.children(recursive=True), outside, *outside.children(recursive=True)]
    held = [sockets(process) for process in [own.parent(), *family]]
    assert len(held[0]) == 3, "the node's requests, and the status of each worker"
    assert [len(each) for each in held[1:]] == [0, 0, 3] * 2, "a worker's channel and event loop"
    assert len(set().union(*held)) == 9


def test_killed_worker_does_not_end_other_workers(both, counters):
    own, outside = started()
    confined(outside).kill()
    until(lambda: ended(outside))
    assert [verifier.verify(TASK, ["x"]).rewards for verifier in both] == [(0.0,)] * 2
    assert own in started() and len(started()) == 2
    assert counters.snapshot() == {"verifier_restarts{reason=idle}": 1.0}


def test_verifier_replaces_dead_worker_before_its_exit_report(both, counters):
    own = started()[0]
    server = own.parent()
    server.suspend()
    own.kill()
    until(lambda: ended(own))
    with ThreadPoolExecutor(1) as one:
        verdict = one.submit(both[0].verify, TASK, ["x"])
        until(verdict.running)
        time.sleep(0.2)  # Gives the verifier time to ask the dead worker.
        server.resume()
        assert verdict.result(60).rewards == (0.0,)
    assert counters.snapshot() == {"verifier_restarts{reason=idle}": 1.0}


def test_workers_exit_with_the_fork_server_and_restart(both, counters):
    first = started()
    server = first[0].parent()
    assert FORK_SERVER in server.cmdline()
    server.kill()
    until(lambda: all(map(ended, first)))
    assert [verifier.verify(TASK, ["x"]).rewards for verifier in both] == [(0.0,)] * 2
    assert {worker.ppid() for worker in started()} != {server.pid}
    assert counters.snapshot() == {"verifier_restarts{reason=idle}": 2.0}


def test_fork_server_exits_with_last_worker(both):
    own, outside = started()
    server = own.parent()
    both[0].close()
    assert ended(own) and not ended(outside) and not ended(server)
    both[1].close()
    assert ended(outside) and ended(server)
