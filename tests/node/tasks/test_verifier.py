import os
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest

from experiments.recipe.local_judge import LocalJudge
from node.tasks.sandbox.namespaces import libc
from node.tasks.sandbox.sandbox import SandboxSupport
from node.tasks.scorer import Answered, Move, judge_all
from node.tasks.task_set import Allowed, load_task_set, open_envs
from node.tasks.verifier.replies import answers
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.tasks.verifier.worker_process import WorkerDied, WorkerLimits, WorkerProcess, Workers
from swarm.common.child_process import Channel
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.verification import UNKNOWN_ENV, Asked, Judged, JudgeRefused, Verdict
from tests.node.programs import ended, newest_worker, python, until

TINY = load_task_set("tiny")


@pytest.fixture(scope="module")
def verifier():
    with Verifier(TINY, outside=True) as verifier:
        yield verifier


def test_a_verdict_is_that_of_the_task_source_itself(verifier):
    sources = open_envs(TINY, Allowed())[0]
    for spec in TINY:
        for level in range(len(spec.levels)):
            task, ref = sources[spec.name].build(level, 12345), TaskRef(spec.name, level, 12345)
            right = str(task.entry["answer"])
            verdict = verifier.judge(ref, [right, "wrong", f" {right}\n"])
            assert (verdict.prompt, verdict.rewards) == (task.prompt, (1.0, 0.0, 1.0))


def test_prompts_come_in_the_order_asked_and_per_split(verifier):
    asked = [TaskRef("gcd", 0, seed, split) for seed in range(20) for split in Split]
    source = open_envs(TINY, Allowed())[0]["gcd"]
    assert verifier.prompts(asked) == [source.build(0, t.seed, t.split).prompt for t in asked]


def test_questions_that_follow_the_order_of_a_set_are_the_same_in_every_worker():
    families = ("isomorphic_strings", "knight_swap", "ransom_note")
    specs = [replace(TINY[0], name=family, levels=("{}",)) for family in families]
    asked = [TaskRef(family, 0, seed) for family in families for seed in range(2)]
    with Verifier(specs, outside=True) as one, Verifier(specs, outside=True) as other:
        assert one.prompts(asked) == other.prompts(asked)


@pytest.mark.parametrize(("env", "level"), [("nothing", 0), ("gcd", 99), ("gcd", -1)])
def test_an_env_or_level_that_is_not_served_is_unknown(verifier, env, level):
    for judge in (verifier, LocalJudge(TINY)):
        with pytest.raises(JudgeRefused) as refusal:
            judge.judge(TaskRef(env, level, 1), ["1"])
        assert refusal.value.reason == UNKNOWN_ENV == "unknown_env"


@pytest.mark.parametrize("outside", [False, True])
def test_local_answers_that_a_slower_machine_may_not_score_in_time_are_named(monkeypatch, outside):
    monkeypatch.setattr("node.tasks.verifier.worker_process.SLOW_PART", 0.0)
    with Verifier(TINY, outside=outside) as verifier:
        verdict = verifier.judge(TaskRef("gcd", 0, 1), ["1", "wrong"])
    assert verdict.over == (() if outside else (0, 1))


def test_texts_of_any_language_and_length_are_judged(verifier):
    texts = ["", "\0", "数" * 65536, "🙂", "x" * 1_000_000, "\n" * 1000]
    assert verifier.judge(TaskRef("gcd", 0, 1), texts).rewards == (0.0,) * len(texts)


def test_many_threads_get_each_their_own_verdict(verifier):
    source = open_envs(TINY, Allowed())[0]["gcd"]
    tasks = [source.build(0, seed) for seed in range(40)]

    def judged(seed):
        return verifier.judge(TaskRef("gcd", 0, seed), [str(tasks[seed].entry["answer"])])

    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(judged, range(40)))
    assert [v.rewards for v in verdicts] == [(1.0,)] * 40
    assert [v.prompt for v in verdicts] == [task.prompt for task in tasks]


def mixed_groups(count: int, texts: int = 2) -> list[Asked]:
    """Groups of all envs in turn, each with one right answer."""
    sources = list(open_envs(TINY, Allowed())[0].values())
    groups = []
    for seed in range(count):
        source = sources[seed % len(sources)]
        right = str(source.build(0, seed).entry["answer"])
        groups.append(Asked(TaskRef(source.name, 0, seed), [right, *["wrong"] * (texts - 1)]))
    return groups


def test_groups_judged_together_get_their_own_verdicts_and_times(verifier, monkeypatch):
    monkeypatch.setattr("node.tasks.verifier.replies.MOMENT_SECONDS", 60.0)
    groups = mixed_groups(70)
    alone = [verifier.judge(g.task, g.texts) for g in groups]
    assert list(judge_all(verifier, groups)) == alone
    assert {verdict.rewards for verdict in alone} == {(1.0, 0.0)}
    assert len(verifier.judge_some(groups)) > 1
    assert all(0.0 < each.seconds < 10.0 for each in judge_all(verifier, groups[:8]))


def test_an_env_that_is_not_served_costs_no_group_beside_it(verifier):
    groups = mixed_groups(6)
    groups[0] = replace(groups[0], task=TaskRef("nothing", 0, 0))
    groups[3] = replace(groups[3], task=replace(groups[3].task, level=99))
    found = list(judge_all(verifier, groups))
    refused = [n for n, each in enumerate(found) if isinstance(each, JudgeRefused)]
    assert refused == [0, 3] and {found[n].reason for n in refused} == {"unknown_env"}
    assert {found[n].rewards for n in (1, 2, 4, 5)} == {(1.0, 0.0)}


def test_groups_of_an_env_that_is_not_served_are_refused_together(verifier):
    groups = [Asked(TaskRef("nothing", 0, seed), ["1"]) for seed in range(100)] + mixed_groups(1)
    refused = verifier.judge_some(groups)
    assert [each.reason for each in refused] == ["unknown_env"] * 100


def test_groups_of_long_texts_are_judged_however_many_there_are(verifier):
    groups = [replace(g, texts=[*g.texts, "x" * 120_000]) for g in mixed_groups(60)]
    verdicts = list(judge_all(verifier, groups))
    assert [verdict.rewards for verdict in verdicts] == [(1.0, 0.0, 0.0)] * 60


def test_an_answer_that_nobody_waited_for_is_never_taken_for_that_of_another_group(monkeypatch):
    first, second = mixed_groups(2)

    def interrupted(worker, seconds):
        raise KeyboardInterrupt

    with Verifier(TINY, outside=False) as verifier:
        verifier.start()
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(WorkerProcess, "receive", interrupted)
            verifier.judge_some([first])
        (verdict,) = verifier.judge_some([second])
        assert [verdict.prompt] == verifier.prompts([second.task])


class Gate(Verifier):
    def __init__(self) -> None:
        super().__init__(TINY, outside=False)
        self.asked, self.opened = threading.Event(), threading.Event()

    def judge(self, *args, **kwargs):
        self.asked.set()
        assert self.opened.wait(20)
        return super().judge(*args, **kwargs)


def test_of_several_verifiers_one_that_is_busy_holds_up_nobody():
    gate = Gate()
    with VerifierPool([Verifier(TINY, outside=False), gate]) as pool, ThreadPoolExecutor(1) as one:
        slow = one.submit(pool.judge, TaskRef("gcd", 0, 1), ["x"])
        assert gate.asked.wait(20)
        assert pool.judge(TaskRef("gcd", 0, 2), ["x"]).rewards == (0.0,)
        assert pool.prompts([TaskRef("gcd", 0, 2)])
        assert not slow.done()
        gate.opened.set()
        assert slow.result().rewards == (0.0,)
    with pytest.raises(JudgeRefused, match="closed"):
        pool.judge(TaskRef("gcd", 0, 2), ["x"])


def test_a_worker_killed_while_idle_costs_nobody_a_verdict():
    counters = Counters()
    with Verifier(TINY, outside=True, counters=counters) as verifier:
        verifier.start()
        worker = newest_worker()
        worker.kill()
        until(lambda: ended(worker))
        assert verifier.judge(TaskRef("gcd", 0, 1), ["x"]).rewards == (0.0,)
        assert newest_worker().pid != worker.pid
    restarts = {n: count for n, count in counters.snapshot().items() if "restarts" in n}
    assert restarts == {"verifier_restarts{reason=idle}": 1.0}


@pytest.mark.parametrize(("outside", "seconds"), [(False, 80.0), (True, 10.0)])
def test_local_texts_that_run_as_code_have_the_time_of_a_group_each(monkeypatch, outside, seconds):
    support = Mock(return_value=SandboxSupport("bubblewrap", landlock=True, seccomp=True))
    monkeypatch.setattr("node.tasks.verifier.worker_process.sandbox_support", support)
    allowed, limits = Allowed(code_execution=["code"]), WorkerLimits(wall_seconds=10.0)
    specs = [replace(TINY[0], name=name) for name in ("code", "plain")]
    workers = Workers(specs, allowed, limits, None, outside=outside, hash_seed=0)
    texts = ["while True: pass"] * 8
    given = [workers.seconds_for(Asked(TaskRef(s.name, 0, 1), texts)) for s in specs]
    assert given == [seconds, 10.0]


def test_closing_ends_the_worker_and_the_verifier():
    with Verifier(TINY, outside=False) as verifier:
        verifier.start()
        worker = newest_worker()
        verifier.close()
    assert not worker.is_running()
    with pytest.raises(JudgeRefused, match="closed"):
        verifier.judge(TaskRef("gcd", 0, 1), ["x"])


def test_a_worker_never_outlives_a_node_that_was_killed():
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


def test_a_node_that_verifies_imports_no_verifier():
    loaded = python("import node.tasks.verifier.verifier, sys; print(*sys.modules)", check=True)
    heavy = {"reasoning_gym", "sympy", "math_verify", "numpy", "torch"}
    assert not heavy & set(loaded.stdout.split())


def test_a_worker_that_cannot_start_is_said_with_its_last_words(monkeypatch):
    monkeypatch.setattr("node.tasks.verifier.worker_process.WORKER", "node.tasks.no_such_worker")
    with Verifier(TINY, outside=False) as verifier, pytest.raises(JudgeRefused) as refusal:
        verifier.start()
    assert refusal.value.reason == "unavailable" and "no_such_worker" in str(refusal.value)


GROUPS = [Asked(TaskRef("sums", 0, seed), ["1", "2"]) for seed in range(2)]
FIRST = {"prompt": "?", "rewards": [1.0, 0.0], "unreadable": 0, "last": False}
LAST = {**FIRST, "last": True}


def heard(*replies: dict[str, Any]) -> list[tuple[Judged, int]]:
    """What comes of a worker that gives these replies to two groups and ends."""
    ours, theirs = (Channel(end) for end in socket.socketpair())
    worker = WorkerProcess(subprocess.Popen(["true"]), ours)

    def bent() -> None:
        theirs.receive()
        for reply in replies:
            theirs.send(reply)
        theirs.close()

    thread = threading.Thread(target=bent)
    thread.start()
    try:
        return list(answers(worker, GROUPS, each=[20.0] * len(GROUPS), together=60.0))
    finally:
        thread.join()
        worker.end()


def test_answers_are_taken_to_the_last_one():
    assert heard(FIRST, LAST) == [(Verdict("?", (1.0, 0.0)), 0, "")] * 2 and len(heard(LAST)) == 1


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
def test_a_worker_that_answers_nonsense_or_goes_on_or_ends_too_early_is_at_an_end(change):
    with pytest.raises(WorkerDied) as death:
        heard(FIRST, {**LAST, **change}, LAST)
    assert death.value.reason == "crashed"
    with pytest.raises(WorkerDied):
        heard(FIRST)


def test_it_agrees_with_the_verifier_on_every_family_and_split(verifier):
    judge = LocalJudge(TINY)
    texts = ["7", "12", "tac", " 10", "", "((("]
    assert judge.start() == verifier.start()
    for spec in TINY:
        for split in Split:
            task = TaskRef(spec.name, len(spec.levels) - 1, 99, split)
            assert judge.prompts([task]) == verifier.prompts([task])
            assert judge.judge(task, texts) == verifier.judge(task, texts)


def test_it_never_evaluates_text_in_this_process():
    specs = [s for s in load_task_set("reasoning-gym") if s.name == "binary_matrix"]
    with pytest.raises(JudgeRefused, match="evaluates the text of completions"):
        LocalJudge(specs).judge(TaskRef("binary_matrix", 0, 1), ["__import__('os').abort()"])


def test_turns_taken_in_it_are_answered_at_once_and_never_raise():
    judge = LocalJudge(load_task_set("games"))
    tasks = [TaskRef("guess", 0, 1), TaskRef("gcd", 0, 1), TaskRef("guess", 99, 1)]
    moves = [Move(number, task, ("500",), final=False) for number, task in enumerate(tasks)]
    outcomes = judge.play_each(moves)
    assert all(outcome.done() for outcome in outcomes)
    answered, unknown, no_level = (outcome.result() for outcome in outcomes)
    assert isinstance(answered, Answered)
    assert (unknown.reason, no_level.reason) == (UNKNOWN_ENV, UNKNOWN_ENV)
    assert judge.waiting == frozenset()


@pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is Linux's")
def test_a_call_that_the_kernel_refuses_is_an_error():
    with pytest.raises(OSError, match="prctl: Invalid argument"):
        libc("prctl", 0x7FFF_FFFF, 0, 0, 0, 0)
