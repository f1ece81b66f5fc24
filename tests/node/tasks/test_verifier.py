"""The verifier: verdicts from a process of its own, which may be lost at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psutil
import pytest

from node.errors import CatalogueError
from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.scorer import judge_all
from node.tasks.verifier.verifier import Verifier, VerifierPool
from node.tasks.verifier.worker_process import WorkerProcess
from protocol.manifest import EnvSpec
from swarm.common.counters import Counters
from swarm.groups import Split, TaskRef
from swarm.verification import Asked, JudgeRefused

TINY = load_catalogue("tiny")


@pytest.fixture(scope="module")
def verifier():
    with Verifier(TINY, outside=True) as verifier:
        yield verifier


def worker_of(verifier: Verifier) -> psutil.Process:
    pids = {child.pid: child for child in psutil.Process().children()}
    assert verifier.pid in pids
    return pids[verifier.pid]


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def test_a_verdict_is_that_of_the_task_source_itself(verifier):
    sources = open_catalogue(TINY, {})
    for spec in TINY:
        for level in range(len(spec.levels)):
            task = sources[spec.name].build(level, 12345)
            right = str(task.entry["answer"])
            verdict = verifier.judge(
                TaskRef(spec.name, level, 12345), [right, "wrong", f" {right}\n"]
            )
            assert verdict.prompt == task.prompt
            assert verdict.rewards == (1.0, 0.0, 1.0)


def test_prompts_come_in_the_order_asked_and_per_split(verifier):
    asked = [TaskRef("gcd", 0, seed, split) for seed in range(20) for split in Split]
    source = open_catalogue(TINY, {})["gcd"]
    assert verifier.prompts(asked) == [source.build(0, t.seed, t.split).prompt for t in asked]


def test_questions_that_follow_the_order_of_a_set_are_the_same_in_every_worker():
    families = ("isomorphic_strings", "knight_swap", "ransom_note")
    specs = [replace(TINY[0], name=family, levels=("{}",)) for family in families]
    asked = [TaskRef(family, 0, seed) for family in families for seed in range(2)]
    answers = []
    for _ in range(2):
        with Verifier(specs, outside=True) as verifier:
            answers.append(verifier.prompts(asked))
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("env", "level"), [("nothing", 0), ("gcd", 99), ("gcd", -1)])
def test_an_env_or_level_that_is_not_served_is_unknown(verifier, env, level):
    with pytest.raises(JudgeRefused) as refusal:
        verifier.judge(TaskRef(env, level, 1), ["1"])
    assert refusal.value.reason == "unknown_env"


def test_texts_of_any_language_and_length_are_judged(verifier):
    texts = ["", "\0", "数" * 65536, "🙂", "x" * 1_000_000, "\n" * 1000]
    assert verifier.judge(TaskRef("gcd", 0, 1), texts).rewards == (0.0,) * len(texts)


def test_many_threads_get_each_their_own_verdict(verifier):
    source = open_catalogue(TINY, {})["gcd"]
    answers = {seed: str(source.build(0, seed).entry["answer"]) for seed in range(40)}
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(
            threads.map(
                lambda seed: verifier.judge(TaskRef("gcd", 0, seed), [answers[seed]]), answers
            )
        )
    assert [v.rewards for v in verdicts] == [(1.0,)] * 40
    assert [v.prompt for v in verdicts] == [source.build(0, seed).prompt for seed in answers]


def mixed_groups(count: int, texts: int = 2) -> list[Asked]:
    """Groups of all envs in turn, each with one right answer."""
    sources = list(open_catalogue(TINY, {}).values())
    groups = []
    for seed in range(count):
        source = sources[seed % len(sources)]
        right = str(source.build(0, seed).entry["answer"])
        groups.append(Asked(TaskRef(source.name, 0, seed), [right, *["wrong"] * (texts - 1)]))
    return groups


def test_groups_judged_together_get_the_verdicts_they_get_alone(verifier):
    groups = mixed_groups(70)
    alone = [verifier.judge(g.task, g.texts) for g in groups]
    assert list(judge_all(verifier, groups)) == alone
    assert {verdict.rewards for verdict in alone} == {(1.0, 0.0)}
    assert len(verifier.judge_some(groups)) > 1


def test_groups_judged_together_are_each_told_what_they_took(verifier):
    verdicts = list(judge_all(verifier, mixed_groups(8)))
    assert all(0.0 < verdict.seconds < 10.0 for verdict in verdicts)


def test_an_env_that_is_not_served_costs_no_group_beside_it(verifier):
    groups = mixed_groups(6)
    groups[0] = replace(groups[0], task=TaskRef("nothing", 0, 0))
    groups[3] = replace(groups[3], task=replace(groups[3].task, level=99))
    found = list(judge_all(verifier, groups))
    refused = [n for n, each in enumerate(found) if isinstance(each, JudgeRefused)]
    assert refused == [0, 3]
    assert {found[n].reason for n in refused} == {"unknown_env"}
    assert {found[n].rewards for n in (1, 2, 4, 5)} == {(1.0, 0.0)}


def test_groups_of_long_texts_are_judged_however_many_there_are(verifier):
    groups = [replace(g, texts=[*g.texts, "x" * 700_000]) for g in mixed_groups(60)]
    verdicts = list(judge_all(verifier, groups))
    assert [verdict.rewards for verdict in verdicts] == [(1.0, 0.0, 0.0)] * 60


def test_an_answer_that_nobody_waited_for_is_never_taken_for_that_of_another_group(monkeypatch):
    first, second = mixed_groups(2)
    with Verifier(TINY, outside=False) as verifier:
        verifier.start()
        with monkeypatch.context() as patched:

            def interrupted(worker, seconds):
                raise KeyboardInterrupt

            patched.setattr(WorkerProcess, "hear", interrupted)
            with pytest.raises(KeyboardInterrupt):
                verifier.judge_some([first])
        (verdict,) = verifier.judge_some([second])
        prompt = verifier.prompts([second.task])
    assert [verdict.prompt] == prompt


class Gate(Verifier):
    """Scores nothing until it is opened."""

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
        worker = worker_of(verifier)
        worker.kill()
        until(lambda: worker.status() == psutil.STATUS_ZOMBIE)
        assert verifier.judge(TaskRef("gcd", 0, 1), ["x"]).rewards == (0.0,)
        assert verifier.pid != worker.pid
    restarts = {n: count for n, count in counters.snapshot().items() if "restarts" in n}
    assert restarts == {"verifier_restarts{reason=idle}": 1.0}


def test_closing_ends_the_worker_and_the_verifier():
    verifier = Verifier(TINY, outside=False)
    verifier.start()
    worker = worker_of(verifier)
    assert 10.0 < verifier.memory_mib() < 500.0
    verifier.close()
    verifier.close()
    assert not worker.is_running()
    assert verifier.memory_mib() == 0.0
    with pytest.raises(JudgeRefused, match="closed"):
        verifier.judge(TaskRef("gcd", 0, 1), ["x"])


def test_a_worker_never_outlives_a_node_that_was_killed():
    node = """
import time
from node.tasks.catalogue import load_catalogue
from node.tasks.verifier.verifier import Verifier
verifier = Verifier(load_catalogue("tiny"), outside=True)
verifier.start()
print(verifier.pid, flush=True)
time.sleep(600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", node], stdout=subprocess.PIPE, env=environment
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_a_node_that_verifies_imports_no_verifier():
    code = "import node.tasks.verifier.verifier, sys; print(*sys.modules)"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    loaded = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert not {"reasoning_gym", "sympy", "math_verify", "numpy", "torch"} & set(loaded.split())


def test_a_catalogue_that_cannot_be_opened_is_said_in_the_words_of_the_catalogue():
    spec = EnvSpec("gdc", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    with (
        Verifier([spec], outside=False) as verifier,
        pytest.raises(CatalogueError, match="'gdc' is no family"),
    ):
        verifier.start()


def test_a_worker_that_cannot_start_is_said_with_its_last_words(monkeypatch):
    monkeypatch.setattr("node.tasks.verifier.worker_process.MODULE", "node.tasks.no_such_worker")
    with Verifier(TINY, outside=False) as verifier, pytest.raises(JudgeRefused) as refusal:
        verifier.start()
    assert refusal.value.reason == "unavailable"
    assert "no_such_worker" in str(refusal.value)
