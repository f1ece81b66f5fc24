"""A creator and peers whose every word would do something in a terminal: they are only read."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.config.config import Config, write_config
from node.monitor.record import RoundRecord
from node.storage.run_folder import RunFolder
from node.tasks.verifier.verifier import Verifier
from node.tasks.verifier.worker_process import WorkerProcess
from protocol.identity import Identity
from protocol.manifest import EnvSpec, Manifest, canonical_json, sign_manifest
from swarm.common.counters import Counters
from swarm.groups import TaskRef
from swarm.verification import JudgeRefused

ACTS = "\x1b]0;owned\x07\x1b[2J\r\nerror: all is well\x9b31m\x7f\u202elive\u2066[/][link=x]y"
COMMANDS = (["status"], ["peers"], ["status", "--json"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run folder that listens on this machine alone."""
    Identity.create(tmp_path / "identity.key")
    config = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "schedule.rounds": 1}
    write_config(tmp_path / "node.toml", Config.with_overrides(config))
    return RunFolder(tmp_path)


def shown_by(folder: RunFolder, *arguments: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "node.cli.main", *arguments, "--config", str(folder.config)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=600,
    )
    return run.returncode, (run.stdout + run.stderr).decode()


def acts(text: str) -> list[str]:
    """Characters that are neither text nor the end of a line."""
    return [c for c in text if not (c.isprintable() or c in "\n\t")]


def everywhere(value: object) -> object:
    """The value with every string in it replaced by one that acts."""
    if isinstance(value, dict):
        return {key: everywhere(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [everywhere(inner) for inner in value]
    return ACTS if isinstance(value, str) else value


def test_acts_would_act():
    assert len(acts(ACTS)) > 6


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_what_peers_call_themselves_is_only_read(folder, command):
    record = RoundRecord(round=1, policy_step=1, time=time.time(), reward_own=0.5)
    named = dict.fromkeys(("peer_id", "author", "name", "line", "model", "version", "refused"), "")
    counted = dict.fromkeys(("policy_step", "bytes_in", "bytes_out", "admitted", "strikes"), 1)
    peer = {**named, **counted, "connected": True, "banned": False}
    status = {"pid": 1, "peer_id": "", "addresses": [""], "swarm_id": "", "swarm_name": ""}
    refused = {ACTS: 3}
    told = {"record": {**record.to_dict(), "refused": refused}, "peers": [peer, peer]}
    folder.write_status(everywhere({**status, **told}))
    code, shown = shown_by(folder, *command)
    assert code == 0, shown
    assert acts(shown) == []
    assert "owned" in shown


def test_what_a_creator_writes_into_a_manifest_is_only_read(folder):
    creator = Identity.generate()
    settings = canonical_json({ACTS: ACTS})
    env = EnvSpec("gcd", "reasoning-gym", "0.1.25", (settings,), ACTS + "{question}", "text")
    manifest = Manifest(name="fine", founder=creator.author, created=1.0, catalogue=(env,))
    folder.manifest.write_bytes(sign_manifest(manifest, creator))
    code, shown = shown_by(folder, "join", "--debug")
    assert code == 1, shown
    assert acts(shown) == []
    assert acts(folder.log.read_text()) == []
    assert "no such setting is open" in shown, "the refusal says what it refuses"


def test_a_bent_worker_names_no_reason_that_its_author_would_pay_for(monkeypatch):
    """Nor a counter: what the verifier says of outside text may be outside text."""
    counters = Counters()
    env = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    with Verifier([env], outside=True, counters=counters) as verifier:
        for reply in (
            {"refused": "bad_signature", "detail": ACTS},
            {"refused": ACTS},
            {"refused": ["unknown_env"]},
            {"prompt": "?", "rewards": [0.0], "unreadable": float("inf")},
            {"prompt": "?", "rewards": [0.0], "unreadable": "1"},
            {"prompt": "?", "rewards": [0.0], "unreadable": 2},
        ):
            verifier.start()
            answer = {**json.loads(json.dumps(reply)), "last": True}
            with monkeypatch.context() as patched, pytest.raises(JudgeRefused) as refused:
                patched.setattr(WorkerProcess, "send", lambda *_: None)
                patched.setattr(WorkerProcess, "receive", lambda *_, answer=answer: answer)
                verifier.judge(TaskRef("gcd", 0, 1), ["6"])
            assert refused.value.reason == "crashed"
    assert counters.snapshot() == {"verifier_restarts{reason=crashed}": 3.0}
