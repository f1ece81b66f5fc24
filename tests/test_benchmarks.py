"""The benchmarks of one policy run with minimal sizes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = ("engine", "evaluation", "learner", "overlap", "partial", "step", "turns")
SMALL = ["--prompts=2", "--completions=2", "--tokens=4", "--turns=1", "--json"]


@pytest.mark.parametrize("name", NAMES)
def test_a_benchmark_runs_and_prints_its_figures(name: str) -> None:
    command = [sys.executable, str(FOLDER / f"{name}.py"), *SMALL]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])
