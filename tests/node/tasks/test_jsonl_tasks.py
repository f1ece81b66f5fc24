"""A file of prompts and answers as an env, scored in the worker as every env is."""

from __future__ import annotations

import json
import time
from pathlib import Path

import psutil
import pytest

from node.errors import CatalogueError
from node.tasks.catalogue import Allowed, open_catalogue
from node.tasks.sources.jsonl import file_digest
from node.tasks.verifier.verifier import Verifier
from protocol.manifest import EnvSpec
from swarm.groups import Split, TaskRef
from swarm.verification import JudgeRefused

PAIRS = [(f"{a} over {b}?", rf"\frac{{{a}}}{{{b}}}") for a in range(1, 33) for b in (4, 8)]


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "halves.jsonl"
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in PAIRS]
    path.write_text("\n".join(lines) + "\n\n")
    return path


def spec(path: Path, *matches: str) -> EnvSpec:
    levels = tuple(json.dumps({"match": m}, separators=(",", ":")) for m in matches)
    return EnvSpec("halves", "jsonl", file_digest(path), levels, "{question}", "text")


def test_every_line_is_a_task(file):
    source = open_catalogue([spec(file, "exact")], {"halves": file})["halves"]
    assert {source.build(0, seed).prompt for seed in range(400)} <= {q for q, _ in PAIRS}
    assert not source.evaluates_text


def test_training_and_evaluation_share_no_line(file):
    source = open_catalogue([spec(file, "exact")], {"halves": file})["halves"]
    train, held_out = ({source.build(0, s, split).prompt for s in range(400)} for split in Split)
    assert train and held_out and not train & held_out


def test_exact_wants_the_text_and_numeric_the_value(file):
    with Verifier(
        [spec(file, "exact", "numeric")], Allowed({"halves": file}), outside=True
    ) as verifier:
        seed = 7
        question = verifier.prompts([TaskRef("halves", 0, seed)])[0]
        gold = dict(PAIRS)[question]
        top, bottom = (int(n) for n in gold.removeprefix(r"\frac{").rstrip("}").split("}{"))
        texts = [gold, f" {gold} ", f"{top}/{bottom}", str(top / bottom), "9", "", "no $ number"]
        exact = verifier.judge(TaskRef("halves", 0, seed), texts)
        numeric = verifier.judge(TaskRef("halves", 1, seed), texts)
    assert exact.prompt == numeric.prompt == question
    assert exact.rewards == (1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert numeric.rewards == (1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("answer", "right", "wrong"),
    [
        ("1,000", "1000", "1"),
        ("-3", "-3.0", "3"),
        ("50\\%", "50\\%", "5"),
        ("2^{10}", "1024", "20"),
        ("\\sqrt{16}", "4", "16"),
        ("0.1", "1/10", "0.11"),
    ],
)
def test_numbers_are_equal_however_they_are_written(tmp_path, answer, right, wrong):
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "?", "answer": answer}))
    source = open_catalogue([spec(path, "numeric")], {"halves": path})["halves"]
    entry = source.questions.draw(0, 0)
    assert source.questions.score(entry, right) == 1.0
    assert source.questions.score(entry, wrong) == 0.0


def test_another_file_than_the_swarms_is_refused(file):
    agreed = spec(file, "exact")
    file.write_text(file.read_text() + json.dumps({"prompt": "more", "answer": "1"}))
    with pytest.raises(CatalogueError, match="get the same file"):
        open_catalogue([agreed], {"halves": file})


def test_a_file_changed_under_a_running_node_makes_its_verifier_unavailable(file):
    with Verifier([spec(file, "exact")], Allowed({"halves": file}), outside=False) as verifier:
        verifier.start()
        file.write_text(file.read_text() + json.dumps({"prompt": "more", "answer": "1"}))
        worker = psutil.Process(verifier.pid)
        worker.kill()
        while worker.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        with pytest.raises(JudgeRefused, match="get the same file") as refusal:
            verifier.judge(TaskRef("halves", 0, 1), ["1"])
    assert refusal.value.reason == "unavailable"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "holds no line"),
        ("nonsense", "line 1"),
        ('{"prompt": "a"}', "line 1.*answer"),
        ('{"prompt": "a", "answer": 3}', "line 1.*strings"),
        ("[1]", "line 1"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, message):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(CatalogueError, match=message):
        open_catalogue([spec(path, "exact")], {"halves": path})


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "with a byte-order mark"])
def test_line_ends_of_unicode_and_a_byte_order_mark_break_no_line(tmp_path, mark):
    path = tmp_path / "halves.jsonl"
    lines = [
        json.dumps({"prompt": f"{n}\u2028{n}\u2029\x85?", "answer": "1"}, ensure_ascii=False)
        for n in range(16)
    ]
    path.write_text(mark + "\r\n".join(lines), encoding="utf-8", newline="")
    source = open_catalogue([spec(path, "exact")], {"halves": path})["halves"]
    assert "\u2028" in source.build(0, 1).prompt


@pytest.mark.parametrize("level", ["{}", '{"match":"close"}', '{"match":"exact","x":1}'])
def test_a_level_is_one_of_two_matches(file, level):
    wrong = EnvSpec("halves", "jsonl", file_digest(file), (level,), "{question}", "text")
    with pytest.raises(CatalogueError, match="match = 'exact'"):
        open_catalogue([wrong], {"halves": file})
