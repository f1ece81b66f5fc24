"""A node that trains adapters on what a vLLM writes that sleeps meanwhile, as its users run it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm

ROUNDS = 16


def test_a_node_trains_adapters_on_what_vllm_writes_between_its_updates(tmp_path: Path) -> None:
    settings = {
        "engine.kind": "vllm",
        "engine.max_new_tokens": 16,
        "engine.sleep_mode": "true",
        "policy.lora_rank": 8,
        "schedule.mode": "async",
        "monitor.live": "false",
        "node.threads": 1,
        "schedule.eval_tasks": 8,
        "mixture.external": 0,
        "mixture.local": 8,
        "learner.lr": 3e-3,
    }
    assignments = [part for key in settings for part in ("--set", f"{key}={settings[key]}")]
    done = subprocess.run(
        [sys.executable, "-m", "node.cli.main", "join", "--rounds", str(ROUNDS), *assignments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    records = (tmp_path / "swarm-run" / "metrics.jsonl").read_text().splitlines()
    last = json.loads(records[-1])
    assert last["policy_step"] > 0
    assert "engine_restarts" not in last["counters"]
    assert "engine_gaps" not in last["counters"], "vLLM's log-probs are those of the adapters"
