from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from node.monitor.record import RoundRecord
from node.network.founding import found_swarm
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from tests.node.conftest import Terminal
from tests.support import saved_policy


def test_found_signs_a_manifest_into_the_run_folder_once(
    terminal: Terminal, node: RunFolder
) -> None:
    args = ("create", "--config", "node", "--name", "sums", "--epoch-seconds", "2")
    facts = terminal.json(*args)
    data = node.manifest.read_bytes()
    manifest = open_manifest(data)
    assert facts["swarm_id"] == swarm_id(data).hex()
    assert (manifest.name, manifest.epoch_seconds) == ("sums", 2.0)
    assert manifest.founder == Identity.load(node.identity).author
    assert terminal(*args) == 1, "another manifest would be another swarm"
    assert node.manifest.read_bytes() == data


def test_found_takes_an_allow_list_and_proof_of_work(terminal: Terminal, node: RunFolder) -> None:
    friend = Identity.generate()
    Path("friends").write_text(f"# people\n{friend.peer_id}  # flo\n\n")
    args = ("create", "--config", "node", "--name", "s")
    assert terminal(*args, "--admission", "allow:friends", "--out", "a.swarm") == 0
    assert open_manifest(Path("a.swarm").read_bytes()).admission.authors == (friend.author,)
    assert terminal(*args, "--admission", "pow:12", "--out", "b.swarm") == 0
    assert open_manifest(Path("b.swarm").read_bytes()).admission.bits == 12
    Path("strangers").write_text("somebody\n")
    for wrong in ("closed", "pow:lots", "pow:99", "allow:", "allow:nowhere", "allow:strangers"):
        assert terminal(*args, "--admission", wrong, "--out", "c.swarm") == 2
        assert "Write" in terminal.err or "Change" in terminal.err
    assert not Path("c.swarm").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--epoch-seconds", "0"], "--epoch-seconds"),
        (["--catalogue", "nowhere"], "reasoning-gym"),
        (["--catalogue", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_found_refuses_impossible_values(
    terminal: Terminal, node: RunFolder, args: list[str], complaint: str
) -> None:
    assert terminal("create", "--config", "node", "--name", "s", *args) == 2
    assert complaint in terminal.err
    assert len(terminal.err.splitlines()) == 1


def test_found_proposes_bounds_that_groups_of_long_answers_fit(
    terminal: Terminal, node: RunFolder
) -> None:
    args = ("create", "--config", "node", "--name", "s", "--answer-tokens", "8192")
    assert terminal(*args, "--group-size", "16") == 2
    assert "--answer-tokens" in terminal.err and "groups of 15" in terminal.err
    assert not node.manifest.exists()
    facts = terminal.json(*args)
    manifest = open_manifest(node.manifest.read_bytes())
    assert facts["answers"]["max_frame_bytes"] == manifest.max_frame_bytes
    assert facts["answers"]["weight"] <= manifest.max_frame_bytes
    assert manifest.max_frame_bytes > 8 * 8_192 * 6
    assert manifest.max_text_bytes >= 8_192 * 4
    assert terminal(*args, "--out", "other.swarm") == 0
    assert f"a frame may have {manifest.max_frame_bytes}" in terminal.out


STATUS = {
    "pid": 7,
    "peer_id": "12D3KooWme",
    "addresses": ["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWme"],
    "swarm_id": "ab" * 32,
    "swarm_name": "sums",
    "record": RoundRecord(round=9, policy_step=8, time=1.0, reward_own=0.5).to_dict(),
    "peers": [
        {
            "peer_id": "12D3KooWlarry",
            "connected": True,
            "bytes_in": 2048,
            "bytes_out": 10,
            "admitted": 3,
            "refused": {"reward_mismatch": 2},
            "strikes": 2.0,
            "banned": True,
        }
    ],
}


def test_status_tells_a_running_node_from_one_that_was(terminal: Terminal, node: RunFolder) -> None:
    node.write_status(STATUS)
    gone = [{**peer, "connected": False} for peer in STATUS["peers"]]
    with node.locked():
        mine = {**STATUS, "pid": os.getpid(), "state": "running", "time": time.time() - 60.0}
        node.write_status(mine)
        told = terminal.json("status", "--config", "node")
        assert 60.0 <= told.pop("age_s") < 120.0
        assert told == {**mine, "running": True, "dashboard": None, "public": None}
        node.write_status(STATUS)
        told = terminal.json("status", "--config", "node")
        assert (told["state"], told["peers"]) == ("starting", gone), "the file is another process's"
    for state, shown in (("stopped", "stopped"), ("running", "crashed")):
        node.write_status({**mine, "state": state})
        assert terminal("status", "--config", "node") == 0
        told_ago = re.search(rf"state     {shown}, told (\d+) s ago", terminal.out)
        assert told_ago and 60 <= int(told_ago[1]) < 120, terminal.out
        assert "round 9 | reward 0.500" in terminal.out
        assert "0 connected, 1 met" in terminal.out
        assert terminal.json("peers", "--config", "node") == gone


def test_a_node_that_starts_says_so_before_it_has_reported(
    terminal: Terminal, node: RunFolder
) -> None:
    with node.locked():
        assert terminal("status", "--config", "node") == 0
        assert terminal.out == f"state     starting as process {os.getpid()}\n"
        told = terminal.json("status", "--config", "node")
        assert (told["state"], told["addresses"], told["peers"]) == ("starting", [], [])


def test_status_before_the_first_round_is_not_an_error(terminal: Terminal, node: RunFolder) -> None:
    node.write_status({**STATUS, "record": None, "peers": []})
    assert terminal("status", "--config", "node") == 0
    assert "none done yet" in terminal.out
    assert terminal("peers", "--config", "node") == 0
    assert "no peers met yet" in terminal.out


def test_peers_shows_what_each_gave_and_what_was_refused(
    terminal: Terminal, node: RunFolder
) -> None:
    node.write_status(STATUS)
    assert terminal("peers", "--config", "node") == 0
    for expected in ("12D3KooWlarry", "2.0 kB", "banned", "reward_mismatch 2"):
        assert expected in terminal.out
    gone = [{**peer, "connected": False} for peer in STATUS["peers"]]
    assert terminal.json("peers", "--config", "node") == gone


def test_export_writes_the_newest_checkpoint_for_other_programs(
    terminal: Terminal, node: RunFolder
) -> None:
    from transformers import AutoModelForCausalLM

    assert terminal("export", "--config", "node", "--out", "model") == 1
    assert "no checkpoint yet" in terminal.err
    checkpoints = Checkpoints(node.checkpoints)
    for step in (1, 2):
        checkpoints.save(
            step, lambda folder, step=step: saved_policy(folder, seed=step), {"n": step}
        )
    (checkpoints.path(2) / "model.safetensors").write_bytes(b"")
    facts = terminal.json("export", "--config", "node", "--out", "model")
    assert facts["state"] == {"n": 1}
    assert "step-00000002 is damaged" in terminal.err
    exported = AutoModelForCausalLM.from_pretrained("model").state_dict()
    saved = AutoModelForCausalLM.from_pretrained(checkpoints.path(1)).state_dict()
    assert all((exported[name] == saved[name]).all() for name in saved)
    assert not list(Path("model").glob("*.pt"))
    assert "# tiny, trained in a swarm" in Path("model/README.md").read_text()
    assert terminal("export", "--config", "node", "--out", "model") == 1
    assert "something already" in terminal.err


def test_eval_scores_a_model_on_held_out_tasks(terminal: Terminal, node: RunFolder) -> None:
    saved_policy(Path("model"))
    args = ("eval", "--config", "node", "--model", "model", "--tasks", "20", "--samples", "2")
    assert terminal(*args) == 1
    assert "swarm-node create" in terminal.err
    node.manifest.write_bytes(found_swarm(Identity.load(node.identity), name="sums"))
    result = terminal.json(*args, "--set", "engine.max_new_tokens=4")
    assert result["tasks"] == 20 == sum(row["tasks"] for row in result["families"].values())
    assert set(result["pass_at"]) == {"1", "2"}
    assert 0.0 <= result["pass_at"]["1"] <= result["pass_at"]["2"] <= 1.0
    assert terminal(*args, "--k", "3") == 2
    assert "--samples 3" in terminal.err


def test_eval_shows_what_was_written_turn_by_turn_and_what_it_was_worth(
    terminal: Terminal, node: RunFolder
) -> None:
    founder = Identity.load(node.identity)
    node.manifest.write_bytes(found_swarm(founder, name="games", catalogue="games"))
    args = ("eval", "--config", "node", "--model", "tiny-games", "--tasks", "10", "--show", "10")
    args += ("--samples", "1", "--set", "engine.max_new_tokens=64")
    shown = terminal.json(*args)["shown"]
    assert len(shown) == 10
    assert all(task["prompt"] and len(task["completions"]) == 1 for task in shown)
    assert all(0.0 <= each["reward"] <= 1.0 for task in shown for each in task["completions"])
    turns = [task["completions"][0]["text"] for task in shown]
    assert any("\n» " in text for text in turns), "an observation stands behind its mark"
    assert terminal(*args[:-4], "--show", "1", "--samples", "1") == 0
    first = shown[0]
    assert f"# {first['env']}, level {first['level']}\n{first['prompt']}\n" in terminal.out
    assert "## reward " in terminal.out and "pass@1" in terminal.out
    assert "shown" not in terminal.json(*args[:-6], "--samples", "1")


def test_a_demo_with_vllm_needs_vllm_and_says_so_before_it_starts_anything(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    assert terminal("demo", "--engine", "vllm", "--run-dir", "demo") == 2
    assert "vLLM is not installed here" in terminal.err
    assert "make vllm" in terminal.err
    assert not Path("demo").exists()


def test_status_says_why_nobody_can_dial_a_node_and_what_would_help(
    terminal: Terminal, node: RunFolder
) -> None:
    reach = {"way": "relayed", "cause": "no peer could dial 11.7.0.3", "remedy": "Open a port."}
    mine = {"pid": os.getpid(), "state": "running", "time": time.time(), "reach": reach}
    node.write_status({**STATUS, **mine})
    with node.locked():
        assert terminal("status", "--config", "node") == 0
        assert "reach     relayed: no peer could dial 11.7.0.3\n" in terminal.out
        assert "reach     -> Open a port.\n" in terminal.out
    assert terminal("status", "--config", "node") == 0
    assert "reach" not in terminal.out, "of a node that does not run nothing is known"
