"""Seeds and former findings end by name, and the fuzzer sees what does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.mutated import run
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_every_input_of_the_corpus_ends_by_name(name):
    target = TARGETS[name]()
    assert target.name == name
    assert target.inputs()
    for data in target.inputs():
        target(data)


def test_no_folder_of_the_corpus_is_without_its_target():
    assert {path.name for path in CORPUS.iterdir() if path.is_dir()} <= set(TARGETS)


def test_an_error_that_nobody_named_is_a_finding():
    def careless(data: bytes) -> None:
        if data[:1] == b"b":
            raise KeyError(data)

    target = Target("careless", careless, (ValueError,), (b"a",))
    with pytest.raises(KeyError):
        run(target, [b"a", b"b"], 16, 200, seed=1)
    run(Target("named", careless, (KeyError,)), [b"a", b"b"], 16, 200, seed=1)


def test_one_target_is_fuzzed_by_the_command(tmp_path):
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-m", "tests.fuzz", "--inputs", "300", "--target", "messages"]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "messages" in done.stdout
    assert "300 inputs tried" in done.stdout
