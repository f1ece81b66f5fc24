"""Terminal control codes in texts of a swarm creator or of peers have no effect."""

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
from swarm.verification import VerifierError

UNSAFE = "\x1b]0;owned\x07\x1b[2J\r\nerror: all is well\x9b31m\x7f\u202elive\u2066[/][link=x]y"
COMMANDS = (["status"], ["peers"], ["status", "--json"])


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Return a run folder whose node listens only on this machine."""
    Identity.create(tmp_path / "identity.key")
    config = {"network.listen": ["/ip4/127.0.0.1/tcp/0"], "schedule.rounds": 1}
    write_config(tmp_path / "node.toml", Config.with_overrides(config))
    return RunFolder(tmp_path)


def run_node(folder: RunFolder, *arguments: str) -> tuple[int, str]:
    run = subprocess.run(
        [sys.executable, "-m", "node.cli.main", *arguments, "--config", str(folder.config)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        timeout=600,
    )
    return run.returncode, (run.stdout + run.stderr).decode()


def unsafe(text: str) -> list[str]:
    """Return the unprintable characters, except newlines and tabs."""
    return [c for c in text if not (c.isprintable() or c in "\n\t")]


def poison(value: object) -> object:
    """Replace every string in the value by one with control characters."""
    if isinstance(value, dict):
        return {key: poison(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [poison(inner) for inner in value]
    return UNSAFE if isinstance(value, str) else value


def test_text_is_unsafe():
    assert len(unsafe(UNSAFE)) > 6


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_commands_escape_text_from_peers(folder, command):
    record = RoundRecord(round=1, policy_step=1, time=time.time(), reward_local=0.5)
    named = dict.fromkeys(("peer_id", "author", "name", "line", "model", "version", "refused"), "")
    counted = dict.fromkeys(("policy_step", "bytes_in", "bytes_out", "admitted", "strikes"), 1)
    peer = {**named, **counted, "connected": True, "banned": False}
    status = {"pid": 1, "peer_id": "", "addresses": [""], "swarm_id": "", "swarm_name": ""}
    refused = {UNSAFE: 3}
    payload = {"record": {**record.to_dict(), "refused": refused}, "peers": [peer, peer]}
    folder.write_status(poison({**status, **payload}))
    code, output = run_node(folder, *command)
    assert code == 0, output
    assert unsafe(output) == []
    assert "owned" in output


def test_join_escapes_text_from_a_manifest(folder):
    creator = Identity.generate()
    settings = canonical_json({UNSAFE: UNSAFE})
    env = EnvSpec("gcd", "reasoning-gym", "0.1.25", (settings,), UNSAFE + "{question}", "text")
    manifest = Manifest(name="fine", founder=creator.author, created=1.0, catalogue=(env,))
    folder.manifest.write_bytes(sign_manifest(manifest, creator))
    code, output = run_node(folder, "join", "--debug")
    assert code == 1, output
    assert unsafe(output) == []
    assert unsafe(folder.log.read_text()) == []
    assert "no such setting is open" in output, "the error names the reason"


def test_forged_worker_reply_counts_as_a_crash(monkeypatch):
    """Check that a reply, which may contain peer text, also names no counter."""
    counters = Counters()
    env = EnvSpec("gcd", "reasoning-gym", "0.1.25", ("{}",), "{question}", "text")
    with Verifier([env], outside=True, counters=counters) as verifier:
        for reply in (
            {"refused": "bad_signature", "detail": UNSAFE},
            {"refused": UNSAFE},
            {"refused": ["unknown_env"]},
            {"prompt": "?", "rewards": [0.0], "unreadable": float("inf")},
            {"prompt": "?", "rewards": [0.0], "unreadable": "1"},
            {"prompt": "?", "rewards": [0.0], "unreadable": 2},
        ):
            verifier.start()
            answer = {**json.loads(json.dumps(reply)), "last": True}
            with monkeypatch.context() as patched, pytest.raises(VerifierError) as refused:
                patched.setattr(WorkerProcess, "send", lambda *_: None)
                patched.setattr(WorkerProcess, "receive", lambda *_, answer=answer: answer)
                verifier.verify(TaskRef("gcd", 0, 1), ["6"])
            assert refused.value.reason == "crashed"
    assert counters.snapshot() == {"verifier_restarts{reason=crashed}": 3.0}
