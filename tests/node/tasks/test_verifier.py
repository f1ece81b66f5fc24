import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from experiments.recipe.local_verifier import LocalVerifier
from node.tasks.sandbox.namespaces import libc
from node.tasks.sandbox.sandbox import SandboxSupport
from node.tasks.scorer import Answered, Move, OverLimit, verify_all
from node.tasks.task_set import Allowed, load_task_set, open_envs
from node.tasks.verifier.replies import answers
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.tasks.verifier.worker import cpu_limit
from node.tasks.verifier.worker_process import WorkerDied, WorkerLimits, WorkerProcess, Workers
from swarm.common.child_process import Channel
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.verification import UNKNOWN_ENV, Scored, Scores, Submission, VerifierError
from tests.node.programs import ended, newest_worker, python, until

TINY = load_task_set("tiny")


@pytest.fixture(scope="module")
def verifier():
    with Verifier(TINY, outside=True) as verifier:
        yield verifier


def test_verifier_agrees_with_the_task_source(verifier):
    sources = open_envs(TINY, Allowed())[0]
    for spec in TINY:
        for level in range(len(spec.levels)):
            task, ref = sources[spec.name].build(level, 12345), TaskRef(spec.name, level, 12345)
            right = str(task.entry["answer"])
            scores = verifier.verify(ref, [right, "wrong", f" {right}\n"])
            assert (scores.prompt, scores.rewards) == (task.prompt, (1.0, 0.0, 1.0))


def test_prompts_follow_request_order_and_split(verifier):
    requests = [TaskRef("gcd", 0, seed, split) for seed in range(20) for split in Split]
    source = open_envs(TINY, Allowed())[0]["gcd"]
    assert verifier.prompts(requests) == [source.build(0, t.seed, t.split).prompt for t in requests]


def test_set_order_does_not_change_questions_between_workers():
    families = ("isomorphic_strings", "knight_swap", "ransom_note")
    specs = [replace(TINY[0], name=family, levels=("{}",)) for family in families]
    requests = [TaskRef(family, 0, seed) for family in families for seed in range(2)]
    with Verifier(specs, outside=True) as one, Verifier(specs, outside=True) as other:
        assert one.prompts(requests) == other.prompts(requests)


@pytest.mark.parametrize(("env", "level"), [("nothing", 0), ("gcd", 99), ("gcd", -1)])
def test_verifier_refuses_unknown_env_or_level(verifier, env, level):
    for scorer in (verifier, LocalVerifier(TINY)):
        with pytest.raises(VerifierError) as refusal:
            scorer.verify(TaskRef(env, level, 1), ["1"])
        assert refusal.value.reason == UNKNOWN_ENV == "unknown_env"


@pytest.mark.parametrize("outside", [False, True])
def test_verifier_lists_local_answers_too_slow_for_other_machines(monkeypatch, outside):
    monkeypatch.setattr("node.tasks.verifier.worker_process.SLOW_PART", 0.0)
    with Verifier(TINY, outside=outside) as verifier:
        scores = verifier.verify(TaskRef("gcd", 0, 1), ["1", "wrong"])
    assert scores.over == (() if outside else (0, 1))


def test_verifier_scores_any_language_and_length(verifier):
    texts = ["", "\0", "数" * 65536, "🙂", "x" * 1_000_000, "\n" * 1000]
    assert verifier.verify(TaskRef("gcd", 0, 1), texts).rewards == (0.0,) * len(texts)


def test_each_thread_gets_its_own_result(verifier):
    source = open_envs(TINY, Allowed())[0]["gcd"]
    tasks = [source.build(0, seed) for seed in range(40)]

    def judged(seed):
        return verifier.verify(TaskRef("gcd", 0, seed), [str(tasks[seed].entry["answer"])])

    with ThreadPoolExecutor(8) as threads:
        all_scores = list(threads.map(judged, range(40)))
    assert [v.rewards for v in all_scores] == [(1.0,)] * 40
    assert [v.prompt for v in all_scores] == [task.prompt for task in tasks]


def mixed_groups(count: int, texts: int = 2) -> list[Submission]:
    """Build groups of all envs in turn, each with one right answer."""
    sources = list(open_envs(TINY, Allowed())[0].values())
    groups = []
    for seed in range(count):
        source = sources[seed % len(sources)]
        right = str(source.build(0, seed).entry["answer"])
        groups.append(Submission(TaskRef(source.name, 0, seed), [right, *["wrong"] * (texts - 1)]))
    return groups


def test_batched_groups_get_separate_results_and_times(verifier, monkeypatch):
    monkeypatch.setattr("node.tasks.verifier.replies.MOMENT_SECONDS", 60.0)
    groups = mixed_groups(70)
    separate = [verifier.verify(g.task, g.texts) for g in groups]
    assert list(verify_all(verifier, groups)) == separate
    assert {scores.rewards for scores in separate} == {(1.0, 0.0)}
    assert len(verifier.verify_some(groups)) > 1
    assert all(0.0 < each.seconds < 10.0 for each in verify_all(verifier, groups[:8]))


def test_unknown_env_does_not_affect_other_groups(verifier):
    groups = mixed_groups(6)
    groups[0] = replace(groups[0], task=TaskRef("nothing", 0, 0))
    groups[3] = replace(groups[3], task=replace(groups[3].task, level=99))
    results = list(verify_all(verifier, groups))
    refused = [n for n, each in enumerate(results) if isinstance(each, VerifierError)]
    assert refused == [0, 3] and {results[n].reason for n in refused} == {"unknown_env"}
    assert {results[n].rewards for n in (1, 2, 4, 5)} == {(1.0, 0.0)}


def test_verifier_refuses_unknown_env_groups_in_one_batch(verifier):
    groups = [Submission(TaskRef("nothing", 0, seed), ["1"]) for seed in range(100)]
    refused = verifier.verify_some(groups + mixed_groups(1))
    assert [each.reason for each in refused] == ["unknown_env"] * 100


def test_verifier_scores_many_long_groups(verifier):
    groups = [replace(g, texts=[*g.texts, "x" * 120_000]) for g in mixed_groups(60)]
    all_scores = list(verify_all(verifier, groups))
    assert [scores.rewards for scores in all_scores] == [(1.0, 0.0, 0.0)] * 60


def test_verifier_discards_the_answer_to_an_interrupted_request(monkeypatch):
    first, second = mixed_groups(2)

    def interrupted(worker, seconds):
        raise KeyboardInterrupt

    with Verifier(TINY, outside=False) as verifier:
        verifier.start()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(WorkerProcess, "receive", interrupted)
            verifier.verify_some([first])
        (scores,) = verifier.verify_some([second])
        assert [scores.prompt] == verifier.prompts([second.task])


class Gate(Verifier):
    def __init__(self) -> None:
        super().__init__(TINY, outside=False)
        self.asked, self.opened = threading.Event(), threading.Event()

    def verify(self, *args, **kwargs):
        self.asked.set()
        assert self.opened.wait(20)
        return super().verify(*args, **kwargs)


def test_busy_verifier_does_not_block_the_pool():
    gate = Gate()
    with VerifierPool([Verifier(TINY, outside=False), gate]) as pool, ThreadPoolExecutor(1) as one:
        slow = one.submit(pool.verify, TaskRef("gcd", 0, 1), ["x"])
        assert gate.asked.wait(20)
        assert pool.verify(TaskRef("gcd", 0, 2), ["x"]).rewards == (0.0,)
        assert pool.prompts([TaskRef("gcd", 0, 2)])
        assert not slow.done()
        gate.opened.set()
        assert slow.result().rewards == (0.0,)
    with pytest.raises(VerifierError, match="closed"):
        pool.verify(TaskRef("gcd", 0, 2), ["x"])


def test_verifier_replaces_worker_killed_while_idle():
    counters = Counters()
    with Verifier(TINY, outside=True, counters=counters) as verifier:
        verifier.start()
        worker = newest_worker()
        worker.kill()
        until(lambda: ended(worker))
        assert verifier.verify(TaskRef("gcd", 0, 1), ["x"]).rewards == (0.0,)
        assert newest_worker().pid != worker.pid
    restarts = {n: count for n, count in counters.snapshot().items() if "restarts" in n}
    assert restarts == {"verifier_restarts{reason=idle}": 1.0}


@pytest.mark.parametrize(("outside", "seconds"), [(False, 80.0), (True, 10.0)])
def test_each_local_code_text_gets_a_full_group_time_limit(monkeypatch, outside, seconds):
    support = Mock(return_value=SandboxSupport("bubblewrap", landlock=True, seccomp=True))
    monkeypatch.setattr("node.tasks.verifier.worker_process.sandbox_support", support)
    allowed, limits = Allowed(code_execution=["code"]), WorkerLimits(wall_seconds=10.0)
    specs = [replace(TINY[0], name=name) for name in ("code", "plain")]
    workers = Workers(specs, allowed, limits, None, outside=outside, hash_seed=0)
    texts = ["while True: pass"] * 8
    timeouts = [workers.seconds_for(Submission(TaskRef(s.name, 0, 1), texts)) for s in specs]
    assert timeouts == [seconds, 10.0]


def test_close_ends_the_worker_and_the_verifier():
    with Verifier(TINY, outside=False) as verifier:
        verifier.start()
        worker = newest_worker()
        verifier.close()
    assert not worker.is_running()
    with pytest.raises(VerifierError, match="closed"):
        verifier.verify(TaskRef("gcd", 0, 1), ["x"])


def test_worker_exits_if_its_node_is_killed():
    node = """
import time
from node.tasks.task_set import load_task_set
from node.tasks.verifier.verifier import Verifier
verifier = Verifier(load_task_set("tiny"), outside=True)
verifier.start()
print(flush=True)
time.sleep(600)
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", node], stdout=subprocess.PIPE, env=env) as parent:
        parent.stdout.readline()
        family = psutil.Process(parent.pid).children(recursive=True)
        assert family
        parent.kill()
    until(lambda: all(map(ended, family)))


def test_verifier_import_loads_no_heavy_library():
    loaded = python("import node.tasks.verifier.verifier, sys; print(*sys.modules)", check=True)
    heavy = {"reasoning_gym", "sympy", "math_verify", "numpy", "torch"}
    assert not heavy & set(loaded.stdout.split())


def test_start_error_includes_the_worker_output(monkeypatch):
    monkeypatch.setattr("node.tasks.verifier.worker_process.WORKER", "node.tasks.no_such_worker")
    with Verifier(TINY, outside=False) as verifier, pytest.raises(VerifierError) as refusal:
        verifier.start()
    assert refusal.value.reason == "unavailable" and "no_such_worker" in str(refusal.value)


GROUPS = [Submission(TaskRef("sums", 0, seed), ["1", "2"]) for seed in range(2)]
FIRST = {"prompt": "?", "rewards": [1.0, 0.0], "unreadable": 0, "last": False}
LAST = {**FIRST, "last": True}


def parsed(*replies: dict[str, Any]) -> list[tuple[Scored, int]]:
    """Return the results of two groups, from a worker that sends these replies."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    worker = WorkerProcess(subprocess.Popen(["true"]), ours)

    def respond() -> None:
        theirs.receive()
        for reply in replies:
            theirs.send(reply)
        theirs.close()

    thread = threading.Thread(target=respond)
    thread.start()
    try:
        return list(answers(worker, GROUPS, each=[20.0] * len(GROUPS), together=60.0))
    finally:
        thread.join()
        worker.end()


def test_answers_stop_after_last_reply():
    assert parsed(FIRST, LAST) == [(Scores("?", (1.0, 0.0)), 0, "")] * 2 and len(parsed(LAST)) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"prompt": 1},
        {"rewards": [1.0]},
        {"rewards": [1.0, 2.0]},
        {"rewards": [1.0, float("nan")]},
        {"rewards": [True, 0.0]},
        {"rewards": None},
        {"unreadable": 3},
        {"unreadable": True},
        {"over": [2]},
        {"over": [True]},
        {"over": 0},
        {"fault": 0},
        {"fault": "x" * 201},
        {"last": False},
        {"last": 0},
    ],
)
def test_invalid_extra_or_missing_replies_end_the_worker(change):
    with pytest.raises(WorkerDied) as failure:
        parsed(FIRST, {**LAST, **change}, LAST)
    assert failure.value.reason == "crashed"
    with pytest.raises(WorkerDied):
        parsed(FIRST)


def test_local_verifier_matches_for_families_and_splits(verifier):
    scorer = LocalVerifier(TINY)
    texts = ["7", "12", "tac", " 10", "", "((("]
    assert scorer.start() == verifier.start()
    for spec in TINY:
        for split in Split:
            task = TaskRef(spec.name, len(spec.levels) - 1, 99, split)
            assert scorer.prompts([task]) == verifier.prompts([task])
            assert scorer.verify(task, texts) == verifier.verify(task, texts)


def test_local_verifier_refuses_to_evaluate_text():
    specs = [s for s in load_task_set("reasoning-gym") if s.name == "binary_matrix"]
    with pytest.raises(VerifierError, match="evaluates the text of completions"):
        LocalVerifier(specs).verify(TaskRef("binary_matrix", 0, 1), ["__import__('os').abort()"])


def test_local_verifier_completes_turns_synchronously():
    scorer = LocalVerifier(load_task_set("games"))
    tasks = [TaskRef("guess", 0, 1), TaskRef("gcd", 0, 1), TaskRef("guess", 99, 1)]
    moves = [Move(number, task, ("500",), final=False) for number, task in enumerate(tasks)]
    outcomes = scorer.play_each(moves)
    assert all(outcome.done() for outcome in outcomes)
    answered, unknown, no_level = (outcome.result() for outcome in outcomes)
    assert isinstance(answered, Answered)
    assert (unknown.reason, no_level.reason) == (UNKNOWN_ENV, UNKNOWN_ENV)
    assert scorer.waiting == frozenset()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the Linux sandbox")
def test_refused_system_call_raises_os_error():
    with pytest.raises(OSError, match="prctl: Invalid argument"):
        libc("prctl", 0x7FFF_FFFF, 0, 0, 0, 0)


def test_cpu_limit_lets_an_import_complete(tmp_path, monkeypatch):
    """A half-loaded module would change later rewards."""
    (tmp_path / "slow_library.py").write_text(
        "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    loaded = []
    with pytest.raises(OverLimit), cpu_limit(0.05):
        loaded.append(import_module("slow_library").end)
        while True:
            pass
    assert loaded
