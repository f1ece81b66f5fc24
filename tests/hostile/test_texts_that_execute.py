"""Mallory answers with code: families that would run it are found by trying, and refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from node.tasks.catalogue import open_catalogue
from node.tasks.sources.jsonl import file_digest
from node.tasks.sources.reasoning_gym import EVALUATING
from protocol.manifest import EnvSpec
from tests.hostile.payload_probe import MARK, texts

PROBE = Path(__file__).with_name("payload_probe.py")
COMPOSITE = {"composite"}  # made of other families, and refused with them


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, bool]:
    done = subprocess.run(
        [sys.executable, str(PROBE)],
        cwd=tmp_path_factory.mktemp("probe"),
        env={"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=200,
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_the_whole_library_is_tried(found):
    assert len(found) == 105


def test_every_family_that_executes_an_answer_is_listed_and_no_other(found):
    executing = {family for family, executes in found.items() if executes}
    assert executing == EVALUATING - COMPOSITE


@pytest.mark.parametrize("match", ["exact", "numeric"])
def test_a_file_of_questions_executes_no_answer(tmp_path, monkeypatch, match):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"prompt": "1/2?", "answer": "0.5"}))
    level = json.dumps({"match": match}, separators=(",", ":"))
    spec = EnvSpec("halves", "jsonl", file_digest(path), (level,), "{question}", "text")
    source = open_catalogue([spec], {"halves": path})["halves"]
    entry = source.questions.draw(0, 0)
    for text in texts("0.5"):
        source.questions.score(entry, text)
        assert MARK not in os.environ
        assert not Path(MARK).exists()
