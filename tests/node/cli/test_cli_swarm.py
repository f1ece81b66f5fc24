from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path

import pytest

from node.monitor.record import RoundRecord
from node.network.founding import found_swarm
from node.storage.checkpoints import Checkpoints
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from tests.support import saved_policy


def test_found_signs_a_manifest_into_the_run_folder_once(terminal, node):
    args = ("create", *AT, "--name", "sums", "--epoch-seconds", "2")
    facts = terminal.json(*args)
    data = node.manifest.read_bytes()
    manifest = open_manifest(data)
    assert facts["swarm_id"] == swarm_id(data).hex()
    assert (manifest.name, manifest.epoch_seconds) == ("sums", 2.0)
    assert manifest.founder == Identity.load(node.identity).author
    assert terminal(*args) == 1, "another manifest would be another swarm"
    assert node.manifest.read_bytes() == data


def test_found_takes_an_allow_list_and_proof_of_work(terminal, node):
    friend = Identity.generate()
    Path("friends").write_text(f"# people\n{friend.peer_id}  # flo\n\n")
    Path("strangers").write_text("somebody\n")
    args = ("create", *AT, "--name", "s", "--admission")
    terminal.ok(*args, "allow:friends", "--out", "a.swarm")
    assert open_manifest(Path("a.swarm").read_bytes()).admission.authors == (friend.author,)
    terminal.ok(*args, "pow:12", "--out", "b.swarm")
    assert open_manifest(Path("b.swarm").read_bytes()).admission.bits == 12
    for wrong in ("closed", "pow:lots", "pow:99", "allow:", "allow:nowhere", "allow:strangers"):
        told = terminal.fails(2, *args, wrong, "--out", "c.swarm")
        assert "Write" in told or "Change" in told
    assert not Path("c.swarm").exists()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--epoch-seconds", "0"], "--epoch-seconds"),
        (["--catalogue", "nowhere"], "reasoning-gym"),
        (["--catalogue", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_found_refuses_impossible_values(terminal, node, args, complaint):
    assert complaint in terminal.refuses(2, "create", "--config", "node", "--name", "s", *args)


def test_found_proposes_bounds_that_groups_of_long_answers_fit(terminal, node):
    args = ("create", "--config", "node", "--name", "s", "--answer-tokens", "8192")
    assert terminal(*args, "--group-size", "16") == 2
    assert "--answer-tokens" in terminal.err and "groups of 15" in terminal.err
    assert not node.manifest.exists()
    facts = terminal.json(*args)
    manifest = open_manifest(node.manifest.read_bytes())
    assert facts["answers"]["max_frame_bytes"] == manifest.max_frame_bytes
    assert facts["answers"]["weight"] <= manifest.max_frame_bytes
    assert manifest.max_frame_bytes > 8 * 8_192 * 6 and manifest.max_text_bytes >= 8_192 * 4
    assert terminal(*args, "--out", "other.swarm") == 0
    assert f"a frame may have {manifest.max_frame_bytes}" in terminal.out


AT = ("--config", "node")
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


GONE = [{**peer, "connected": False} for peer in STATUS["peers"]]


def test_status_tells_a_running_node_from_one_that_was(terminal, node):
    node.write_status(STATUS)
    with node.locked():
        mine = {**STATUS, "pid": os.getpid(), "state": "running", "time": time.time() - 60.0}
        node.write_status(mine)
        told = terminal.json("status", *AT)
        assert 60.0 <= told.pop("age_s") < 120.0
        assert told == {**mine, "running": True, "dashboard": None, "public": None}
        node.write_status(STATUS)
        told = terminal.json("status", *AT)
        assert (told["state"], told["peers"]) == ("starting", GONE), "the file is another process's"
    for state, shown in (("stopped", "stopped"), ("running", "crashed")):
        node.write_status({**mine, "state": state})
        told_ago = re.search(
            rf"state     {shown}, reported (\d+) s ago", terminal.ok("status", *AT)
        )
        assert told_ago and 60 <= int(told_ago[1]) < 120, terminal.out
        assert "round 9 | reward 0.500" in terminal.out and "0 connected, 1 met" in terminal.out
        assert terminal.json("peers", *AT) == GONE


def test_a_node_that_starts_says_so_before_it_has_reported(terminal, node):
    with node.locked():
        assert terminal.ok("status", *AT) == f"state     starting as process {os.getpid()}\n"
        told = terminal.json("status", *AT)
        assert (told["state"], told["addresses"], told["peers"]) == ("starting", [], [])


def test_status_before_the_first_round_is_not_an_error(terminal, node):
    node.write_status({**STATUS, "record": None, "peers": []})
    assert "none done yet" in terminal.ok("status", *AT)
    assert "no peers met yet" in terminal.ok("peers", *AT)


def test_peers_shows_what_each_gave_and_what_was_refused(terminal, node):
    node.write_status(STATUS)
    shown = terminal.ok("peers", *AT)
    for expected in ("12D3KooWlarry", "2.0 kB", "banned", "reward_mismatch 2"):
        assert expected in shown
    assert terminal.json("peers", *AT) == GONE


def test_export_writes_the_newest_checkpoint_for_other_programs(terminal, node):
    from transformers import AutoModelForCausalLM

    export = ("export", *AT, "--out", "model")
    assert "no checkpoint yet" in terminal.fails(1, *export)
    checkpoints = Checkpoints(node.checkpoints)
    for step in (1, 2):
        checkpoints.save(step, partial(saved_policy, seed=step), {"n": step})
    (checkpoints.path(2) / "model.safetensors").write_bytes(b"")
    assert terminal.json(*export)["state"] == {"n": 1}
    assert "step-00000002 is damaged" in terminal.err
    exported = AutoModelForCausalLM.from_pretrained("model").state_dict()
    saved = AutoModelForCausalLM.from_pretrained(checkpoints.path(1)).state_dict()
    assert all((exported[name] == saved[name]).all() for name in saved)
    assert not list(Path("model").glob("*.pt"))
    assert "# tiny, trained in a swarm" in Path("model/README.md").read_text()
    assert "something already" in terminal.fails(1, *export)


def test_eval_scores_a_model_on_held_out_tasks(terminal, node):
    saved_policy(Path("model"))
    args = ("eval", *AT, "--model", "model", "--tasks", "20", "--samples", "2")
    assert "swarm-node create" in terminal.fails(1, *args)
    node.manifest.write_bytes(found_swarm(Identity.load(node.identity), name="sums"))
    result = terminal.json(*args, "--set", "engine.max_new_tokens=4")
    assert result["tasks"] == 20 == sum(row["tasks"] for row in result["families"].values())
    assert set(result["pass_at"]) == {"1", "2"}
    assert 0.0 <= result["pass_at"]["1"] <= result["pass_at"]["2"] <= 1.0
    assert "--samples 3" in terminal.fails(2, *args, "--k", "3")


def test_eval_shows_what_was_written_turn_by_turn_and_what_it_was_worth(terminal, node):
    founder = Identity.load(node.identity)
    node.manifest.write_bytes(found_swarm(founder, name="games", catalogue="games"))
    args = ("eval", *AT, "--model", "tiny-games", "--tasks", "10", "--samples", "1")
    shown = terminal.json(*args, "--show", "10", "--set", "engine.max_new_tokens=64")["shown"]
    assert len(shown) == 10
    assert all(task["prompt"] and len(task["completions"]) == 1 for task in shown)
    assert all(0.0 <= each["reward"] <= 1.0 for task in shown for each in task["completions"])
    turns = [task["completions"][0]["text"] for task in shown]
    assert any("\n» " in text for text in turns), "an observation stands behind its mark"
    told, first = terminal.ok(*args, "--show", "1"), shown[0]
    assert f"# {first['env']}, level {first['level']}\n{first['prompt']}\n" in told
    assert "## reward " in told and "pass@1" in told
    assert "shown" not in terminal.json(*args)


def test_a_demo_with_vllm_needs_vllm_and_says_so_before_it_starts_anything(terminal, monkeypatch):
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    told = terminal.fails(2, "demo", "--engine", "vllm", "--run-dir", "demo")
    assert "vLLM is not installed here" in told and "make vllm" in told
    assert not Path("demo").exists()


def test_status_says_why_nobody_can_dial_a_node_and_what_would_help(terminal, node):
    reach = {"way": "relayed", "cause": "no peer could dial 11.7.0.3", "remedy": "Open a port."}
    mine = {"pid": os.getpid(), "state": "running", "time": time.time(), "reach": reach}
    node.write_status({**STATUS, **mine})
    with node.locked():
        told = terminal.ok("status", *AT)
        assert "reach     relayed: no peer could dial 11.7.0.3\n" in told
        assert "reach     -> Open a port.\n" in told
    assert "reach" not in terminal.ok("status", *AT), "of a stopped node nothing is known"
