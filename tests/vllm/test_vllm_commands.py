"""The demo, and a node that trains adapters, on what vLLM writes, as its users run them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.vllm

SETTINGS = {
    "engine.kind": "vllm",
    "engine.max_new_tokens": 16,
    "engine.sleep_mode": "true",
    "policy.lora_rank": 8,
    "schedule.mode": "async",
    "schedule.eval_tasks": 8,
    "monitor.live": "false",
    "node.threads": 1,
    "learner.lr": 3e-3,
    "mixture.external": 0,
    "mixture.local": 8,
}


def done(folder: Path, *arguments: str) -> str:
    """What a command printed that ended well."""
    command = [sys.executable, "-m", "node.cli.main", *arguments]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def last_record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])


def test_a_node_of_the_demo_learns_from_what_vllm_writes(tmp_path: Path) -> None:
    command = ["demo", "--engine", "vllm", "--nodes", "1", "--mix", "8/0", "--json"]
    told = done(tmp_path, *command, "--rounds", "12", "--run-dir", str(tmp_path / "demo"))
    (node,) = json.loads(told)["nodes"]
    assert node["rounds"] == 12
    last = last_record(tmp_path / "demo" / "node-1")
    assert last["policy_step"] > 0
    assert "engine_restarts" not in json.dumps(last)


def test_a_node_trains_adapters_on_what_vllm_writes_between_its_updates(tmp_path: Path) -> None:
    assignments = [part for key in SETTINGS for part in ("--set", f"{key}={SETTINGS[key]}")]
    done(tmp_path, "join", "--rounds", "16", *assignments)
    last = last_record(tmp_path / "swarm-run")
    assert last["policy_step"] > 0
    assert "engine_restarts" not in last["counters"]
    assert "engine_gaps" not in last["counters"], "vLLM's log-probs are those of the adapters"
