"""Checks of a task set by ``create``, before anyone trains on it."""

import json
import re
from itertools import count

import pytest

from node.errors import TaskSetError
from node.tasks.sandbox.sandbox import sandbox_support
from node.tasks.sources.jsonl import file_digest
from node.tasks.task_set import Allowed
from node.tasks.verifier.replay_trial import Trial, try_replays
from protocol.manifest import EnvSpec
from tests.node.environments.parts import written
from tests.node.packages import declare

COUNTS = """
import itertools
import time

count = itertools.count().__next__


class Counts:
    version, levels, evaluates_text = "1", 1, False

    def __init__(self, levels):
        pass

    def draw(self, level, number):
        return {question}

    def score(self, entry, answer):
        return {score}
"""
SECRET = '{"question": f"{number}", "answer": str(time.time_ns())}'
NUMBERED = '{"question": f"What is {number}?"}'
STUBBORN = """
class Stubborn:
    replayable = True

    def reset(self, seed: int) -> str:
        return f"Door {seed}"

    def step(self, action: str) -> tuple[str, bool]:
        raise KeyError("hinge")

    def reward(self) -> float:
        return 1.0
"""


@pytest.fixture
def tried(tmp_path, monkeypatch):
    """Return a function that checks a task of this question and score in a new folder."""
    folders = count()

    def once(question: str, score: str, *, evaluates: bool = False) -> Trial:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        code = COUNTS.replace("{question}", question).replace("{score}", score)
        (folder / "counts_task.py").write_text(code.replace("False", str(evaluates)))
        monkeypatch.syspath_prepend(folder)
        declare(monkeypatch, folder, "counts", "counts_task:Counts")
        spec = EnvSpec("counts", "plugin", "1", ("{}",), "{question}", "text")
        return try_replays([spec], Allowed(code_execution=["counts"] if evaluates else []))

    return once


@pytest.mark.parametrize(
    ("question", "score", "reason"),
    [
        ('{"question": f"At {time.time_ns()}"}', "0.0", "differs in another process"),
        ('{"question": f"{hash(str(number))}?"}', "0.0", "differs in another process"),
        ("1 / 0", "0.0", "cannot draw: ZeroDivisionError"),
        ("None", "0.0", "no train question"),
        ('{"question": "?"}', "0.0", "no (train|heldout) question"),
        *(
            (NUMBERED, s, f"an answer {s}: a score is a number from 0 to 1")
            for s in ("1.5", "None")
        ),
        (NUMBERED, "0.1 + time.time() % 1 / 2", "differs in another process .*: it scores '' as 0"),
        (NUMBERED, "hash('a') % 8 / 8", "differs in another process .*: it scores '' as "),
        (SECRET, "float(answer == entry['answer'])", r"its answer is '\d+', not '\d+'"),
        ('{"question": f"{number} {count()}"}', "0.0", "differs in another process"),
        (
            '{"question": f"{number}", "answer": "\\ud800"}',
            "0.0",
            "cannot draw: UnicodeEncodeError",
        ),
    ],
)
def test_replay_check_rejects_untrainable_task(tried, question, score, reason):
    with pytest.raises(TaskSetError, match=f"'counts' level 0 .*{reason}"):
        tried(question, score)


@pytest.mark.parametrize("score", ["1 / 0", "entry['missing']"])
def test_scorer_error_is_logged_once(tried, caplog, score):
    tried(NUMBERED, score)
    log = [record.message for record in caplog.records if "'counts'" in record.message]
    assert len(log) == 1 and re.search(r"Error\(.* at \w+\.py:\d+$", log[0])


@pytest.mark.skipif(not sandbox_support().whole, reason="no sandbox for code execution")
def test_code_execution_scorer_error_is_logged_once(tried, caplog):
    tried(NUMBERED, "entry['missing']", evaluates=True)
    log = [record.message for record in caplog.records if "KeyError('missing')" in record.message]
    assert len(log) == 1


ANSWERED = '{"question": f"What is {number}?", "answer": f"x{number}"}'


@pytest.mark.parametrize("score", ["0.0", "float(answer == str(entry['answer'])[1:])", "1 / 0"])
def test_replay_check_rejects_unrewarded_correct_answer(tried, score):
    wrong = r"'counts' level 0 gives its right answer no reward: 'x\d+': correct"
    with pytest.raises(TaskSetError, match=wrong):
        tried(ANSWERED, score)


@pytest.mark.parametrize("score", ["float(bool(entry.pop('answer', '')))", "1.0 / (1 + count())"])
def test_replay_check_rejects_order_dependent_scores(tried, score):
    with pytest.raises(TaskSetError, match=r"'counts' level 0 (scores 'x.* after others|differs)"):
        tried(ANSWERED, score)


def test_replay_check_warns_about_slow_scoring(tried, monkeypatch, caplog):
    tried(ANSWERED, "0.5")
    assert "to score an answer" not in caplog.text
    monkeypatch.setattr("node.tasks.verifier.replay_trial.SLOW", 0.0)
    tried(ANSWERED, "0.5")
    assert "lost after 10 s together" in caplog.text


@pytest.mark.parametrize("evaluates", [False, True])
def test_replay_check_warns_about_unshared_slow_answers(tried, monkeypatch, caplog, evaluates):
    if evaluates and not sandbox_support().whole:
        pytest.skip("no sandbox for answers that run as code")
    monkeypatch.setattr("node.tasks.verifier.worker_process.SLOW_PART", 0.0)
    tried(ANSWERED, "0.5", evaluates=evaluates)
    assert "slow answers are not shared" in caplog.text


def test_log_shows_scorer_error_for_the_correct_answer(tried, caplog):
    with pytest.raises(TaskSetError, match="no reward"):
        tried(ANSWERED, "float(int(answer[1:]) == entry['missing'])")
    (log,) = [each.message for each in caplog.records if "raised an error" in each.message]
    assert "KeyError('missing')" in log


def test_os_error_names_file_and_setting(tried, caplog):
    tried(NUMBERED, "open('words.txt')")
    (log,) = [each.message for each in caplog.records if "raised an error" in each.message]
    assert "'words.txt'" in log and "sandbox.read" in log


@pytest.mark.parametrize(
    ("question", "score", "warned"),
    [
        (ANSWERED, "1.0 - bool(answer) / 2", 1),
        (NUMBERED, "float(not answer)", 1),
        (ANSWERED, "0.5", 0),
        (ANSWERED, "float(answer == entry['answer'])", 0),
        (NUMBERED, "0.0", 0),
    ],
)
def test_warning_reports_reward_for_empty_answer(tried, caplog, question, score, warned):
    tried(question, score)
    log = [each.message for each in caplog.records if "an empty answer" in each.message]
    assert len(log) == warned and all("'counts' level 0" in each for each in log)
    assert ("rewards every answer alike" in caplog.text) == (score == "0.5")


def test_replay_check_warns_about_questions_that_cannot_be_drawn(tried, caplog):
    tried('{"question": f"What is {number // (number % 24)}?"}', "len(answer) / 9")
    (line,) = [each.getMessage() for each in caplog.records if "skip" in each.getMessage()]
    assert re.search(r"part of its questions, \d+ of 64 here: .*ZeroDivisionError", line)


def test_environment_error_is_logged_once(tmp_path, caplog):
    flaky_code = STUBBORN.replace("return f", "self._odd = seed % 2\n        return f")
    flaky_code = flaky_code.replace(
        "raise", "if self._odd:\n            return '', True\n        raise"
    )
    assert try_replays(*written(tmp_path, "stubborn", flaky_code)).replayed == ("stubborn",)
    log = [record.message for record in caplog.records if "KeyError" in record.message]
    assert len(log) == 1 and "'stubborn'" in log[0]


@pytest.mark.parametrize("replayable", ["True", "False"])
def test_replay_check_rejects_env_without_a_working_step(tmp_path, replayable):
    with pytest.raises(TaskSetError, match=r"level 0 cannot be used: no step succeeds: .*hinge"):
        code = STUBBORN.replace("replayable = True", f"replayable = {replayable}")
        try_replays(*written(tmp_path, "stubborn", code))


def test_error_reports_reset_that_ignores_seed(tmp_path):
    code = STUBBORN.replace("seed: int", "seed: int = 0").replace("{seed}", "1")
    with pytest.raises(TaskSetError, match="its reset ignores the seed, or it has too few"):
        try_replays(*written(tmp_path, "stubborn", code))


WAITING = """
class Pause:
    def __await__(self):
        yield


class Door:
    replayable = True

    def reset(self, seed: int):
        return self.after(f"Door {seed}", "reset")

    def step(self, action: str):
        return self.after(("open", True), "step")

    def reward(self):
        return self.after(1.0, "reward")

    async def after(self, result, method):
        if method == "{method}":
            await Pause()
        return result
"""


@pytest.mark.parametrize("method", ["reset", "step", "reward"])
def test_replay_check_rejects_undeclared_async_class(tmp_path, method):
    code = WAITING.replace("{method}", method)
    with pytest.raises(TaskSetError, match="its class does not say async"):
        try_replays(*written(tmp_path, "door", code))
    assert try_replays(*written(tmp_path, "other", WAITING)).replayed == ("other",)


def test_file_needs_train_and_heldout_questions(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "1 + 1?", "answer": "2"}))
    level = ('{"match":"exact"}',)
    spec = EnvSpec("one", "jsonl", file_digest(path), level, "{question}", "text")
    with pytest.raises(TaskSetError, match="too few different questions: add some"):
        try_replays([spec], Allowed({"one": path}))
