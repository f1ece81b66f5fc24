"""The demo with vLLM as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

ROUNDS = 12


def test_a_node_of_the_demo_learns_from_what_vllm_writes(tmp_path: Path) -> None:
    command = ["demo", "--engine", "vllm", "--nodes", "1", "--mix", "8/0", "--json"]
    command += ["--rounds", str(ROUNDS)]
    done = subprocess.run(
        [sys.executable, "-m", "node.cli.main", *command, "--run-dir", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    (node,) = summary["nodes"]
    assert node["rounds"] == ROUNDS
    records = (tmp_path / "demo" / "node-1" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["policy_step"] > 0
    assert "engine_restarts" not in records[-1]
