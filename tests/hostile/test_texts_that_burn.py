"""Flo sends texts that make a verifier burn, hang or die: her group is lost, the node is not."""

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from node.tasks.task_set import Allowed, load_task_set
from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerLimits
from protocol.manifest import EnvSpec
from swarm.groups import TaskRef
from swarm.verification import Asked, JudgeRefused
from tests.hostile.deeds import GOOD
from tests.node.packages import declare
from tests.node.programs import newest_worker, until

STRANGE = EnvSpec("strange", "plugin", "1", ("{}",), "{question}", "text")
TASK = TaskRef("strange", 0, 1)
TIGHT = WorkerLimits(cpu_seconds=1, wall_seconds=4.0)
UNHURRIED = replace(TIGHT, wall_seconds=600.0)

BURNERS = {
    "powers": "9**9**9**9**9",
    "carets": "9^9^9^9^9",
    "digits": "9" * 60_000,
    "exponent": "1e99999999999",
    "fraction": "9" * 4000 + "/" + "9" * 4000,
    "fractions": "1/" * 30_000 + "1",
    "factorials": "9" + "!" * 60,
    "open brackets": "(" * 60_000,
    "nested brackets": "(" * 30_000 + "A" + ")" * 30_000,
    "nested lists": "[" * 60_000,
    "nested braces": r"\frac{" * 10_000,
    "negations": "¬" * 60_000,
    "conjunctions": "A∧" * 20_000 + "A",
    "programs": "+[>+]" * 10_000,
    "blank lines": "\n" * 60_000,
    "wide digits": "１" * 20_000,
    "a fence of blanks": "```" + " " * 20_000 + "x",
    "tags": "<answer>" * 8000 + "</answer>" * 8000,
}


@pytest.fixture
def limits():
    return TIGHT


@pytest.fixture
def long_moment(monkeypatch):
    """In which a busy machine begins all groups of a request."""
    monkeypatch.setattr("node.tasks.verifier.replies.MOMENT_SECONDS", 60.0)


@pytest.fixture
def strange(tmp_path, monkeypatch, counters, limits):
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:Strange")
    monkeypatch.chdir(tmp_path)
    with Verifier([STRANGE], outside=True, limits=limits, counters=counters) as verifier:
        assert verifier.start() == ("strange",)
        yield verifier


ENDS = ["leave", "exit", "crash", "recurse", "burn_memory", "burn_in_c"]


@pytest.mark.skipif(sys.platform != "linux", reason="such families open on Linux alone")
@pytest.mark.parametrize(
    ("ends", "outside", "limits"), [(ENDS, True, UNHURRIED), (["sleep"], False, TIGHT)]
)
def test_a_text_that_runs_as_code_and_ends_its_process_is_wrong_and_costs_no_other(
    tmp_path, monkeypatch, counters, ends, outside, limits
):
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:StrangeOnce")
    allowed = Allowed(code_execution=["strange"])
    with Verifier([STRANGE], allowed, outside=outside, limits=limits, counters=counters) as judge:
        if not judge.start():
            pytest.skip("this machine has no sandbox for texts that run as code")
        found = judge.judge(TASK, [GOOD, *ends, GOOD])
    assert found.rewards == (1.0, *[0.0] * len(ends), 1.0)
    assert found.over == tuple(range(1, len(ends) + 1)), "its author may have seen it end well"
    assert counters.snapshot() == {"answers_unreadable{env=strange}": len(ends)}


def refusal(verifier: Verifier, text: str) -> str:
    with pytest.raises(JudgeRefused) as refused:
        verifier.judge(TASK, [GOOD, text])
    return refused.value.reason


LOSING = {"sleep": "timeout", "burn_memory": "crashed", "leave": "crashed"}


@pytest.mark.parametrize(("deed", "reason"), LOSING.items(), ids=LOSING)
def test_a_text_that_loses_the_worker_loses_its_group_alone(strange, counters, deed, reason):
    before = newest_worker().pid
    assert refusal(strange, deed) == reason
    assert counters.snapshot() == {f"verifier_restarts{{reason={reason}}}": 1.0}
    assert strange.judge(TASK, [GOOD, "bad"]).rewards == (1.0, 0.0)
    assert newest_worker().pid != before
    assert not psutil.pid_exists(before)


def asked(*texts: str) -> list[Asked]:
    return [Asked(TaskRef("strange", 0, seed), [text]) for seed, text in enumerate(texts)]


@pytest.mark.usefixtures("long_moment")
@pytest.mark.parametrize("deed", ["sleep", "leave"])
def test_of_groups_judged_together_the_one_that_loses_the_worker_is_known(strange, deed):
    groups = asked(GOOD, "bad", deed, GOOD)
    first, second, third = strange.judge_some(groups)
    assert (first.rewards, second.rewards, third.reason) == ((1.0,), (0.0,), LOSING[deed])
    assert third.seconds is not None
    (fourth,) = strange.judge_some(groups[3:])
    assert fourth.rewards == (1.0,)


@pytest.mark.usefixtures("long_moment")
def test_a_group_that_is_refused_is_the_last_that_is_judged_at_once_by_the_same_worker(strange):
    before = newest_worker().pid
    first, second = strange.judge_some(asked(GOOD, "recurse", GOOD))
    assert (first.rewards, second.reason) == ((1.0,), "crashed")
    assert refusal(strange, "recurse") == "crashed", "alone too"
    assert newest_worker().pid == before


def test_groups_that_take_long_are_judged_one_at_a_time_and_each_is_told_what_it_took(strange):
    groups = asked("doze", "doze")
    found = [strange.judge_some(groups), strange.judge_some(groups[1:])]
    assert [len(each) for each in found] == [1, 1]
    assert all(each[0].seconds >= 0.6 for each in found)


@pytest.mark.usefixtures("long_moment")
@pytest.mark.parametrize("limits", [UNHURRIED])
def test_groups_judged_together_have_no_more_time_than_their_caller_has(strange):
    found = strange.judge_some(asked(GOOD, "sleep", GOOD), seconds=6.0)
    assert [getattr(each, "reason", "judged") for each in found] == ["judged", "timeout"]
    assert sum(each.seconds for each in found) < UNHURRIED.wall_seconds


@pytest.mark.parametrize("limits", [UNHURRIED])
@pytest.mark.parametrize(
    ("texts", "rewards", "counted"),
    [
        (["die", GOOD], (0.0, 1.0), None),
        (["trip", GOOD, "trip"], (0.0, 1.0, 0.0), {"answers_unreadable{env=strange}": 2.0}),
        (["burn_cpu", GOOD], (0.0, 1.0), {"answers_unreadable{env=strange}": 1.0}),
        (["chatter", GOOD], (1.0, 1.0), {}),
        (["write"], (0.0,), None),
    ],
    ids=[
        *("kills its worker", "trips its verifier", "burns CPU time", "prints into the channel"),
        "writes a file",
    ],
)
def test_no_text_harms_its_worker(strange, counters, tmp_path, texts, rewards, counted):
    before = newest_worker().pid
    assert strange.judge(TASK, texts).rewards == rewards
    assert newest_worker().pid == before
    assert counted is None or counters.snapshot() == counted
    assert not (tmp_path / "swarm-node-was-here").exists()


def test_a_reward_outside_zero_to_one_is_no_verdict(strange):
    assert refusal(strange, "overpay") == "crashed"


@pytest.mark.parametrize("limits", [UNHURRIED])
def test_a_worker_killed_in_the_middle_of_a_request_is_replaced(strange, counters):
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(refusal(strange, "sleep")))
    worker = newest_worker()

    def woken() -> int:
        own = [worker, *worker.children(recursive=True)]
        return sum(each.num_ctx_switches().voluntary for each in own)

    idle = woken()
    thread.start()
    until(lambda: woken() > idle)  # it waits for requests alone
    worker.kill()
    thread.join(300)  # a new worker starts first, on a machine however busy
    assert outcome == ["worker_lost"]
    assert strange.judge(TASK, [GOOD]).rewards == (1.0,)
    assert counters.snapshot() == {"verifier_restarts{reason=worker_lost}": 1.0}


def test_a_text_that_alone_fills_the_memory_of_a_new_worker_is_to_blame(strange):
    assert strange.judge(TASK, [GOOD]).rewards == (1.0,)
    assert refusal(strange, "burn_memory") == "worker_lost", "others may have left it little"
    assert refusal(strange, "burn_memory") == "crashed"


@pytest.mark.parametrize("limits", [UNHURRIED])
def test_many_texts_do_not_share_the_time_of_one_and_those_that_exceed_it_are_named(strange):
    found = strange.judge(TASK, ["burn_cpu", GOOD, *["burn_cpu"] * 5])
    assert (found.rewards, found.over) == ((0.0, 1.0, *[0.0] * 5), (0, 2, 3, 4, 5, 6))


def test_the_worker_inherits_no_secrets_and_no_descriptors(strange, monkeypatch, tmp_path):
    secret = tmp_path / "identity.key"
    secret.touch()
    with secret.open() as held:
        os.set_inheritable(held.fileno(), True)
        monkeypatch.setenv("HF_TOKEN", "secret")
        monkeypatch.setenv("HOME", "/home/annas-own")
        assert refusal(strange, "leave") == "crashed"
        inode = f"{os.fstat(held.fileno()).st_dev}:{os.fstat(held.fileno()).st_ino}"
        (prompt,) = strange.prompts([TASK])
    assert "PYTHONHASHSEED" in prompt and f"{Path(os.devnull).stat().st_ino}" in prompt
    assert "HF_TOKEN" not in prompt and "annas-own" not in prompt
    assert inode not in prompt


@pytest.mark.parametrize("name", ["tiny", "reasoning-gym"])
def test_flos_longest_and_deepest_texts_are_wrong_or_refused_on_every_shipped_task(name, counters):
    specs = load_task_set(name)
    allowed = Allowed(code_execution=["binary_matrix"])
    with Verifier(specs, allowed, outside=True, limits=UNHURRIED, counters=counters) as verifier:
        for spec in specs:
            for burner in BURNERS.values():
                text = f"<answer>{burner}</answer>" if spec.extract == "answer_tag" else burner
                try:
                    assert verifier.judge(TaskRef(spec.name, 0, 3), [text]).rewards == (0.0,)
                except JudgeRefused as refusal:
                    assert refusal.reason in {"timeout", "cpu_limit", "crashed", "unknown_env"}
            if spec.name != "binary_matrix":
                assert verifier.judge(TaskRef(spec.name, 0, 3), ["?"]).rewards == (0.0,)


def test_no_text_makes_a_reader_of_answers_take_more_than_linear_time(counters):
    blanks, commas = "```" + " " * 20_000 + "x", "1" + "," * 60_000 + "x 2"
    texts = [f"<answer>{blanks}</answer>", commas, "]" + " " * 60_000]
    specs, limits = load_task_set("tiny"), replace(UNHURRIED, cpu_seconds=8)
    with Verifier(specs, outside=True, limits=limits, counters=counters) as verifier:
        for spec in specs:
            assert not any(verifier.judge(TaskRef(spec.name, 0, 3), texts).rewards)
    assert counters.snapshot() == {}
