"""Flo's texts make a worker hang or die: flo's group is lost, the node continues."""

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
from swarm.verification import Submission, VerifierError
from tests.hostile.deeds import GOOD
from tests.node.packages import declare
from tests.node.programs import newest_worker, until

STRANGE = EnvSpec("strange", "plugin", "1", ("{}",), "{question}", "text")
TASK = TaskRef("strange", 0, 1)
TIGHT = WorkerLimits(cpu_seconds=1, wall_seconds=4.0)
LENIENT = replace(TIGHT, wall_seconds=600.0)

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
    """Extend the moment in which a worker starts the groups of a request."""
    monkeypatch.setattr("node.tasks.verifier.replies.MOMENT_SECONDS", 60.0)


@pytest.fixture
def strange(tmp_path, monkeypatch, counters, limits):
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:Strange")
    monkeypatch.chdir(tmp_path)
    with Verifier([STRANGE], outside=True, limits=limits, counters=counters) as verifier:
        assert verifier.start() == ("strange",)
        yield verifier


ENDS = ["leave", "exit", "crash", "recurse", "burn_memory", "burn_in_c"]


@pytest.mark.skipif(sys.platform != "linux", reason="families that evaluate text need Linux")
@pytest.mark.parametrize(
    ("ends", "outside", "limits"), [(ENDS, True, LENIENT), (["sleep"], False, TIGHT)]
)
def test_code_text_that_ends_its_process_scores_zero_alone(
    tmp_path, monkeypatch, counters, ends, outside, limits
):
    declare(monkeypatch, tmp_path, "strange", "tests.hostile.strange_tasks:StrangeOnce")
    allowed = Allowed(code_execution=["strange"])
    options = {"outside": outside, "limits": limits, "counters": counters}
    with Verifier([STRANGE], allowed, **options) as verifier:
        if not verifier.start():
            pytest.skip("this machine has no sandbox for texts that run as code")
        result = verifier.verify(TASK, [GOOD, *ends, GOOD])
    assert result.rewards == (1.0, *[0.0] * len(ends), 1.0)
    assert result.over == tuple(range(1, len(ends) + 1)), "the author may have got another result"
    assert counters.snapshot() == {"answers_unreadable{env=strange}": len(ends)}


def refusal(verifier: Verifier, text: str) -> str:
    with pytest.raises(VerifierError) as refused:
        verifier.verify(TASK, [GOOD, text])
    return refused.value.reason


FATAL = {"sleep": "timeout", "burn_memory": "crashed", "leave": "crashed"}


@pytest.mark.parametrize(("deed", "reason"), FATAL.items(), ids=FATAL)
def test_text_that_ends_the_worker_fails_only_its_group(strange, counters, deed, reason):
    before = newest_worker().pid
    assert refusal(strange, deed) == reason
    assert counters.snapshot() == {f"verifier_restarts{{reason={reason}}}": 1.0}
    assert strange.verify(TASK, [GOOD, "bad"]).rewards == (1.0, 0.0)
    assert newest_worker().pid != before
    assert not psutil.pid_exists(before)


def requests(*texts: str) -> list[Submission]:
    return [Submission(TaskRef("strange", 0, seed), [text]) for seed, text in enumerate(texts)]


@pytest.mark.usefixtures("long_moment")
@pytest.mark.parametrize("deed", ["sleep", "leave"])
def test_verifier_identifies_the_group_that_ended_the_worker(strange, deed):
    groups = requests(GOOD, "bad", deed, GOOD)
    first, second, third = strange.verify_some(groups)
    assert (first.rewards, second.rewards, third.reason) == ((1.0,), (0.0,), FATAL[deed])
    assert third.seconds is not None
    (fourth,) = strange.verify_some(groups[3:])
    assert fourth.rewards == (1.0,)


@pytest.mark.usefixtures("long_moment")
def test_refused_group_ends_the_batch_but_not_the_worker(strange):
    before = newest_worker().pid
    first, second = strange.verify_some(requests(GOOD, "recurse", GOOD))
    assert (first.rewards, second.reason) == ((1.0,), "crashed")
    assert refusal(strange, "recurse") == "crashed", "a request of its own gives the same result"
    assert newest_worker().pid == before


def test_slow_groups_are_verified_one_at_a_time_and_timed(strange):
    groups = requests("doze", "doze")
    result = [strange.verify_some(groups), strange.verify_some(groups[1:])]
    assert [len(each) for each in result] == [1, 1]
    assert all(each[0].seconds >= 0.6 for each in result)


@pytest.mark.usefixtures("long_moment")
@pytest.mark.parametrize("limits", [LENIENT])
def test_batched_groups_share_the_time_limit(strange):
    result = strange.verify_some(requests(GOOD, "sleep", GOOD), seconds=6.0)
    assert [getattr(each, "reason", "judged") for each in result] == ["judged", "timeout"]
    assert sum(each.seconds for each in result) < LENIENT.wall_seconds


HARMLESS = {
    "kills its worker": (["die", GOOD], (0.0, 1.0), None),
    "trips its verifier": (
        ["trip", GOOD, "trip"],
        (0.0, 1.0, 0.0),
        {"answers_unreadable{env=strange}": 2.0},
    ),
    "burns CPU time": (["burn_cpu", GOOD], (0.0, 1.0), {"answers_unreadable{env=strange}": 1.0}),
    "prints into the channel": (["chatter", GOOD], (1.0, 1.0), {}),
    "writes a file": (["write"], (0.0,), None),
}


@pytest.mark.parametrize("limits", [LENIENT])
@pytest.mark.parametrize(("texts", "rewards", "counted"), HARMLESS.values(), ids=HARMLESS)
def test_no_text_harms_its_worker(strange, counters, tmp_path, texts, rewards, counted):
    before = newest_worker().pid
    assert strange.verify(TASK, texts).rewards == rewards
    assert newest_worker().pid == before
    assert counted is None or counters.snapshot() == counted
    assert not (tmp_path / "swarm-node-was-here").exists()


def test_out_of_range_reward_counts_as_a_crash(strange):
    assert refusal(strange, "overpay") == "crashed"


@pytest.mark.parametrize("limits", [LENIENT])
def test_verifier_replaces_worker_killed_during_a_request(strange, counters):
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(refusal(strange, "sleep")))
    worker = newest_worker()

    def wakeups() -> int:
        own = [worker, *worker.children(recursive=True)]
        return sum(each.num_ctx_switches().voluntary for each in own)

    idle = wakeups()
    thread.start()
    until(lambda: wakeups() > idle)  # An idle worker wakes up only for requests.
    worker.kill()
    thread.join(300)  # A new worker starts first, which may take long.
    assert outcome == ["worker_lost"]
    assert strange.verify(TASK, [GOOD]).rewards == (1.0,)
    assert counters.snapshot() == {"verifier_restarts{reason=worker_lost}": 1.0}


def test_second_out_of_memory_text_is_reported_as_crashed(strange):
    assert strange.verify(TASK, [GOOD]).rewards == (1.0,)
    assert refusal(strange, "burn_memory") == "worker_lost", "earlier texts may have used memory"
    assert refusal(strange, "burn_memory") == "crashed"


@pytest.mark.parametrize("limits", [LENIENT])
def test_each_text_has_its_own_time_limit_and_excesses_are_listed(strange):
    result = strange.verify(TASK, ["burn_cpu", GOOD, *["burn_cpu"] * 5])
    assert (result.rewards, result.over) == ((0.0, 1.0, *[0.0] * 5), (0, 2, 3, 4, 5, 6))


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
def test_extreme_texts_score_zero_or_are_refused_on_all_tasks(name, counters):
    specs = load_task_set(name)
    allowed = Allowed(code_execution=["binary_matrix"])
    with Verifier(specs, allowed, outside=True, limits=LENIENT, counters=counters) as verifier:
        for spec in specs:
            for burner in BURNERS.values():
                text = f"<answer>{burner}</answer>" if spec.extract == "answer_tag" else burner
                try:
                    assert verifier.verify(TaskRef(spec.name, 0, 3), [text]).rewards == (0.0,)
                except VerifierError as refusal:
                    assert refusal.reason in {"timeout", "cpu_limit", "crashed", "unknown_env"}
            if spec.name != "binary_matrix":
                assert verifier.verify(TaskRef(spec.name, 0, 3), ["?"]).rewards == (0.0,)


def test_answer_parsing_takes_linear_time(counters):
    blanks, commas = "```" + " " * 20_000 + "x", "1" + "," * 60_000 + "x 2"
    texts = [f"<answer>{blanks}</answer>", commas, "]" + " " * 60_000]
    specs, limits = load_task_set("tiny"), replace(LENIENT, cpu_seconds=8)
    with Verifier(specs, outside=True, limits=limits, counters=counters) as verifier:
        for spec in specs:
            assert not any(verifier.verify(TaskRef(spec.name, 0, 3), texts).rewards)
    assert counters.snapshot() == {}
