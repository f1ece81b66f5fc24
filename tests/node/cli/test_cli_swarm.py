import json
import os
import re
import shlex
import subprocess
import time
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from node.monitor.record import RoundRecord
from node.network.creation import create_swarm
from node.run.background import Detached
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from node.tasks.task import split_of
from protocol.identity import Identity
from protocol.manifest import open_manifest, swarm_id
from swarm.common.clock import SystemClock
from swarm.groups import Split
from swarm.journal import Journal
from swarm.reputation import Accounts
from tests.node.conftest import Terminal
from tests.support import saved_policy

CREATE = ("create", "--config", "node", "--name", "sums")
SUM = '{"prompt": "1 + 1 =", "answer": "2"}\n'
SUMS = "".join(f'{{"prompt": "1 + {n} =", "answer": "{n + 1}"}}\n' for n in range(100))
KEYS = 'template = "{question}"\nextract = "text"\n[[env]]\n'


def gym(name: str = "gcd", level: str = "max_value = 9") -> str:
    head = 'source = "reasoning-gym"\nversion = "0.1.25"\n'
    return f'{head}{KEYS}name = "{name}"\nlevels = [{{ {level} }}]\n'


def sums(level: str = 'match = "numeric"') -> str:
    """Return a task set whose tasks are in a file next to it."""
    env = 'name = "sums"\nfile = "sums.jsonl"\n'
    return f'source = "jsonl"\n{KEYS}{env}levels = [{{ {level} }}]\n'


def written(task_set: str, lines: str = SUMS) -> tuple[str, ...]:
    Path("own.toml").write_text(task_set)
    Path("sums.jsonl").write_text(lines)
    return (*CREATE, "--task-set", "own.toml")


@pytest.mark.parametrize(
    ("task_set", "lines", "complaint"),
    [
        (gym("gdc"), SUM, "env 'gdc' is not a family of reasoning-gym"),
        (gym(level="max_valeu = 9"), SUM, "max_valeu"),
        (sums(), SUM, "too few different questions: add some"),
        (sums('match = "nope"'), SUM, "not {'match': 'nope'}"),
        (sums('macth = "numeric"'), SUM, "not {'macth': 'numeric'}"),
        (sums(), "1 + 1 = 2\n", "sums.jsonl line 1 is not JSON"),
        (sums(), "", "has no line"),
        (sums(), '{"prompt": "1 + 1 =", "answer": null}\n', "line 1: answer is None: write"),
        (
            sums(),
            '{"question": "1 + 1 =", "answer": "2"}\n',
            "has question, answer: write an object",
        ),
        (sums(), "[]\n", "line 1 has list: write an object with the keys prompt and answer"),
        (
            sums(),
            SUMS.replace("=", "= " * 70_000),
            "characters, at most 131072 can be used: shorten it",
        ),
        (sums().replace('file = "sums.jsonl"\n', ""), SUM, "env 'sums' in 'own.toml' lacks file"),
    ],
)
def test_create_rejects_an_unusable_task_set(terminal, node, task_set, lines, complaint):
    told = terminal.refuses(2, *written(task_set, lines))
    assert told.startswith("error: --task-set: own.toml (") and complaint in told
    assert not node.manifest.exists()


@pytest.mark.parametrize("task_set", [gym(), sums()])
def test_create_signs_a_valid_task_set(terminal, node, task_set):
    assert "not tried" not in terminal.ok(*written(task_set))
    assert node.manifest.exists()


def test_create_asks_to_configure_local_task_files(terminal, node):
    told = terminal.ok(*written(sums()))
    line = f'set tasks.files.sums = "{Path("sums.jsonl").absolute()}" in node/node.toml'
    assert f"this node does not train on sums yet: {line}" in told
    plain = node.config.read_text()
    for number, path in enumerate(("sums.jsonl", "../sums.jsonl")):
        node.config.write_text(f'{plain}\n[tasks.files]\nsums = "{path}"\n')
        told = terminal.ok(*written(sums()), "--out", f"{number}.swarm")
        assert ("train on sums yet" in told) == (path == "sums.jsonl")


def test_create_describes_a_file_and_warns_of_several_answers(terminal, node):
    assert "several answers" not in terminal.ok(*written(sums(), SUMS + SUMS))
    other = SUMS + SUM.replace("2", "3").replace("1 + 1", "1 + 3")
    told = terminal.ok(*written(sums(), other), "--out", "other.swarm")
    assert "sums.jsonl has 1 question with several answers, such as '1 + 3 ='" in told
    assert "sums.jsonl: 101 lines, 100 questions, the longest of 8 characters; " in told


def test_task_set_error_states_the_cause_once(terminal, node):
    told = terminal.refuses(2, *written(sums(), SUM))
    why = "env 'sums' level 0 cannot be used: no heldout question in 256 draws; it has too few"
    assert f"own.toml ({why}" in told


def test_create_names_untested_families_with_the_reason(terminal, node):
    told = terminal.ok(*written(gym("binary_matrix", "min_n = 3")))
    assert "not tested: env 'binary_matrix' evaluates the text of completions" in told
    plugin = gym("nowhere", "").replace('"reasoning-gym"', '"plugin"')
    told = terminal.ok(*written(plugin), "--out", "other.swarm")
    assert "not tested: env 'nowhere' is not available here: install its package" in told
    assert "no task family opens here, so this node cannot train in this swarm" in told


def test_create_rejects_an_existing_manifest_first(terminal, node):
    node.manifest.write_bytes(b"mine")
    remedy = "Name a new file with --out, or move this one away if no swarm uses it yet."
    told = f"error: cannot write the manifest (File exists): {node.manifest}. {remedy}\n"
    assert terminal.fails(1, *CREATE, "--task-set", "nowhere.toml") == told
    assert node.manifest.read_bytes() == b"mine"


def test_create_signs_a_manifest_into_the_run_folder_once(terminal, node):
    args = (*CREATE, "--epoch-seconds", "2")
    facts = terminal.json(*args)
    data = node.manifest.read_bytes()
    manifest = open_manifest(data)
    assert facts["swarm_id"] == swarm_id(data).hex()
    assert (manifest.name, manifest.epoch_seconds) == ("sums", 2.0)
    assert manifest.founder == Identity.load(node.identity).author
    assert terminal(*args) == 1, "the second manifest is refused"
    assert node.manifest.read_bytes() == data


def test_create_refuses_a_used_folder_or_an_unfinished_move(terminal, node):
    with node.locked():
        assert "already used by process" in terminal.fails(1, *CREATE)
    assert not node.manifest.exists()
    here, there = "1" * 64, "2" * 64
    for name in (here, there):
        (node.swarms / name).mkdir(parents=True)
    (node.swarms / there / node.manifest.name).write_bytes(b"there")
    plan = {"left": here, "entered": there, "out": True}
    (node.swarms / "move.json").write_text(json.dumps(plan))
    assert "File exists" in terminal.fails(1, *CREATE)
    assert node.manifest.read_bytes() == b"there"


def test_create_accepts_allow_list_and_proof_of_work(terminal, node):
    friend = Identity.generate()
    pasted = f'"/ip4/1.2.3.4/tcp/5/p2p/{friend.peer_id}",'
    Path("friends").write_text(f"# people\n{friend.peer_id}  # flo\n\n{pasted}\n")
    args = ("create", *AT, "--name", "s", "--admission")
    told = terminal.ok(*args, "allow:friends", "--out", "a.swarm")
    own = Identity.load(node.identity).peer_id
    assert f"this swarm's allow list does not have this node, {own}" in told
    assert open_manifest(Path("a.swarm").read_bytes()).admission.authors == (friend.author,)
    assert "allow list" not in terminal.ok(*args, "pow:12", "--out", "b.swarm")
    assert open_manifest(Path("b.swarm").read_bytes()).admission.bits == 12


def test_create_sets_frame_limits_for_long_answers(terminal, node):
    args = ("create", "--config", "node", "--name", "s", "--answer-tokens", "8192")
    told = terminal.fails(2, *args, "--group-size", "16")
    assert "--answer-tokens" in told and "groups of 15" in told
    assert not node.manifest.exists()
    facts = terminal.json(*args)
    manifest = open_manifest(node.manifest.read_bytes())
    assert facts["answers"]["max_frame_bytes"] == manifest.max_frame_bytes
    assert facts["answers"]["weight"] <= manifest.max_frame_bytes
    assert manifest.max_frame_bytes > 8 * 8_192 * 6 and manifest.max_text_bytes >= 8_192 * 4
    shown = terminal.ok(*args, "--out", "other.swarm")
    assert f"a frame may have {manifest.max_frame_bytes}" in shown


AT = ("--config", "node")
LARRY = {"peer_id": "12D3KooWlarry", "bytes_in": 2048, "bytes_out": 10, "admitted": 3}
LARRY |= {"refused": {"reward_mismatch": 2}, "strikes": 2.0, "banned": True}
STATUS = {
    "pid": 7,
    "peer_id": "12D3KooWme",
    "addresses": ["/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWme"],
    "swarm_id": "ab" * 32,
    "swarm_name": "sums",
    "record": RoundRecord(round=9, policy_step=8, time=1.0, reward_local=0.5).to_dict(),
    "peers": [{**LARRY, "connected": True}],
}
GONE = [{**LARRY, "connected": False}]


def test_status_reports_running_stopped_and_crashed(terminal, node):
    node.write_status(STATUS)
    with node.locked():
        mine = {**STATUS, "pid": os.getpid(), "state": "running", "time": time.time() - 60.0}
        node.write_status(mine)
        told = terminal.json("status", *AT)
        assert 60.0 <= told.pop("age_s") < 120.0
        assert told == {**mine, "running": True, "dashboard": None, "public": None}
        node.write_status(STATUS)
        told = terminal.json("status", *AT)
        assert (told["state"], told["peers"]) == ("starting", GONE), "another process wrote it"
    for state, shown in (("stopped", "stopped"), ("running", "crashed")):
        node.write_status({**mine, "state": state})
        line = rf"state     {shown}, reported \d+ s ago\n"
        assert re.search(line, terminal.ok("status", *AT)), terminal.out
        assert "round 9 | reward 0.500" in terminal.out and "0 connected, 1 present" in terminal.out
        assert terminal.json("peers", *AT) == [{**GONE[0], "trusted": False, "blocked": False}]


def test_peers_lists_absent_peers_with_a_ban_or_groups(terminal, node):
    banned, useful, idle = (Identity.generate() for _ in range(3))
    node.write_status({**STATUS, "peers": []})
    with closing(Journal(node.journal, SystemClock())) as journal:
        accounts = Accounts(journal, SystemClock())
        accounts.refuse(banned.author, "reward_mismatch", 6)
        accounts.admit(useful.author, 2)
        accounts.count_bytes(idle.author, received=10)
    listed = {each["peer_id"]: each for each in terminal.json("peers", *AT)}
    assert listed.keys() == {banned.peer_id, useful.peer_id}
    assert listed[banned.peer_id]["banned"]
    told = terminal.ok("peers", banned.peer_id, *AT)
    assert re.search(r"penalties +6, banned for 3 h more\n", told), told
    assert terminal.json("peers", idle.peer_id, *AT)["bytes_in"] == 10


def test_status_handles_a_starting_node_without_rounds(terminal, node):
    with node.locked():
        assert terminal.ok("status", *AT) == f"state     starting as process {os.getpid()}\n"
        told = terminal.json("status", *AT)
        assert (told["state"], told["addresses"], told["peers"]) == ("starting", [], [])
    node.write_status({**STATUS, "record": None, "peers": []})
    assert "none done yet" in terminal.ok("status", *AT)
    assert "no known peers yet" in terminal.ok("peers", *AT)


def test_export_writes_the_newest_intact_checkpoint(terminal, node):
    from transformers import AutoModelForCausalLM

    export = ("export", *AT, "--out", "model")
    assert "no checkpoint yet" in terminal.fails(1, *export)
    checkpoints = Checkpoints(node.checkpoints)
    for step in (1, 2):
        checkpoints.save(step, partial(saved_policy, seed=step), {"n": step, "policy_step": step})
    (checkpoints.path(2) / "model.safetensors").write_bytes(b"")
    assert terminal.json(*export)["state"]["n"] == 1
    assert "step-00000002 is damaged" in terminal.err
    exported = AutoModelForCausalLM.from_pretrained("model").state_dict()
    saved = AutoModelForCausalLM.from_pretrained(checkpoints.path(1)).state_dict()
    assert all((exported[name] == saved[name]).all() for name in saved)
    assert not list(Path("model").glob("*.pt"))
    assert "# tiny, trained in a swarm" in Path("model/README.md").read_text()
    assert "already exists" in terminal.fails(1, *export)


def test_eval_scores_a_model_on_held_out_tasks(terminal, node):
    saved_policy(Path("model"))
    args = ("eval", *AT, "--model", "model", "--tasks", "20", "--samples", "2")
    assert "swarm-node create" in terminal.fails(1, *args)
    node.manifest.write_bytes(create_swarm(Identity.load(node.identity), name="sums"))
    result = terminal.json(*args, "--set", "engine.max_new_tokens=4")
    assert result["tasks"] == 20 == sum(row["tasks"] for row in result["families"].values())
    assert set(result["pass_at"]) == {"1", "2"}
    assert 0.0 <= result["pass_at"]["1"] <= result["pass_at"]["2"] <= 1.0
    few = ("--family", "gcd", "--family", "chain_sum", "--set", "engine.max_new_tokens=2")
    output = terminal.json(*args, *few, "--show", "1")
    assert set(output["families"]) == {"gcd", "chain_sum"}
    (task,) = output["shown"]
    (right,) = {each["right"] for each in task["completions"]}
    assert right.removeprefix("-").isdecimal() and task["completions"][0]["read"] is not None
    assert "This swarm has: " in terminal.fails(2, *args, "--family", "gdc")


def test_eval_asks_each_heldout_question_once(terminal, node):
    saved_policy(Path("model"))
    lines = [f'{{"prompt": "{n} + {n}", "answer": "{2 * n}"}}\n' for n in range(40)]
    Path("sums.jsonl").write_text("".join(lines))
    Path("sums.toml").write_text(
        'source = "jsonl"\ntemplate = "{question}"\nextract = "text"\n'
        '[[env]]\nname = "sums"\nfile = "sums.jsonl"\nlevels = [{ match = "exact" }]\n'
    )
    signed = create_swarm(Identity.load(node.identity), name="sums", task_set="sums.toml")
    node.manifest.write_bytes(signed)
    args = ("eval", *AT, "--model", "model", "--samples", "1", "--tasks")
    keys = (f"tasks.files.sums={Path('sums.jsonl').resolve()}", "engine.max_new_tokens=2")
    keys = [part for key in keys for part in ("--set", key)]
    assert "differ" not in terminal.ok(*args, "3", *keys), "another one replaces a repeated one"
    found = terminal.json(*args, "20", *keys)["tasks"]
    held_out = sum(split_of(f"{n} + {n}") is Split.HELDOUT for n in range(40))
    assert found == held_out
    assert f"{found} held-out tasks of 20 differ" in terminal.ok(*args, "20", *keys)


def test_eval_shows_completions_by_turn_with_rewards(terminal, node):
    creator = Identity.load(node.identity)
    node.manifest.write_bytes(create_swarm(creator, name="games", task_set="games"))
    args = ("eval", *AT, "--model", "tiny-games", "--tasks", "10", "--samples", "1")
    shown = terminal.json(*args, "--show", "10", "--set", "engine.max_new_tokens=64")["shown"]
    assert len(shown) == 10
    assert all(task["prompt"] and len(task["completions"]) == 1 for task in shown)
    assert all(0.0 <= each["reward"] <= 1.0 for task in shown for each in task["completions"])
    turns = [task["completions"][0]["text"] for task in shown]
    assert any("\n» " in text for text in turns), "a mark precedes each observation"
    told, first = terminal.ok(*args, "--show", "1"), shown[0]
    assert f"# {first['env']}, level {first['level']}\n{first['prompt']}\n" in told
    assert "## reward " in told and "pass@1" in told and "answer read" not in told
    assert "shown" not in terminal.json(*args)


def test_demo_reports_a_missing_vllm_before_it_starts(terminal, monkeypatch):
    monkeypatch.setattr("node.engines.kinds.PACKAGES", ("a-package-that-is-nowhere",))
    told = terminal.fails(2, "demo", "--engine", "vllm", "--run-dir", "demo")
    assert "vLLM is not installed here" in told and "make vllm" in told
    assert not Path("demo").exists()


def test_status_explains_why_a_node_is_unreachable(terminal, node):
    reach = {"way": "relayed", "cause": "no peer could dial 11.7.0.3", "remedy": "Open a port."}
    mine = {"pid": os.getpid(), "state": "running", "time": time.time(), "reach": reach}
    node.write_status({**STATUS, **mine})
    with node.locked():
        told = terminal.ok("status", *AT)
        assert "reach     relayed: no peer could dial 11.7.0.3\n" in told
        assert "reach     -> Open a port.\n" in told
    assert "reach" not in terminal.ok("status", *AT), "a stopped node has no reach"


NAMED = ("create", "--name", "sums", "--config")
SEED = ["swarm-node", "bootstrap", "--config", "my node/node.toml"]


def steps(terminal: Terminal) -> list[list[str]]:
    """Return the printed next commands, split as a shell does."""
    told = [line.partition(": ") for line in terminal.out.splitlines()]
    starts = ("next", "or, without training", "then", "follow it with", "stop it with")
    return [shlex.split(command) for start, _, command in told if start in starts]


def test_create_with_out_prints_copy_and_bootstrap_steps(terminal):
    terminal.ok("init", "my node")
    terminal.ok(*NAMED, "my node", "--out", "other file.swarm")
    copy, seed = steps(terminal)
    assert seed == SEED
    subprocess.run(copy, check=True)
    pinned = RunFolder(Path("my node")).manifest
    assert pinned.read_bytes() == Path("other file.swarm").read_bytes()
    assert pinned.stat().st_mode & 0o777 == 0o600


def test_create_for_a_second_swarm_prints_steps_for_a_new_node(terminal, node):
    terminal.ok(*NAMED, "node")
    terminal.ok(*NAMED, "node", "--out", "other.swarm")
    make, copy, seed = steps(terminal)
    assert make == ["swarm-node", "init", "FOLDER"]
    assert copy[-2:] == ["other.swarm", "FOLDER/manifest.swarm"]
    assert seed == ["swarm-node", "bootstrap", "--config", "FOLDER"]


def test_create_in_the_run_folder_prints_only_start_steps(terminal):
    terminal.ok("init", "my node")
    terminal.ok(*NAMED, "my node")
    assert steps(terminal) == [[*SEED[:1], "join", *SEED[2:]], SEED]
    Path("my node/manifest.swarm").unlink()
    terminal.ok(*NAMED, "my node", "--out", "my node/manifest.swarm")
    assert steps(terminal)[1:] == [SEED]


def test_printed_commands_quote_paths_with_spaces(terminal, monkeypatch):
    terminal.ok("init", "my node")
    assert steps(terminal)[0][2:4] == ["--config", "my node/node.toml"]
    runs = Detached(7, {"addresses": []}, None, "")
    monkeypatch.setattr("node.run.background.start_detached", lambda arguments, folder: runs)
    listen = 'network.listen=["/ip4/127.0.0.1/tcp/0"]'
    terminal.ok("join", "--detach", "--config", "my node", "--set", listen)
    assert [step[-1] for step in steps(terminal)] == ["my node/node.toml"] * 2


def test_plan_quotes_a_model_path_with_spaces(terminal):
    saved_policy(Path("my model"))
    terminal.ok("plan", "my model")
    assert steps(terminal) == [["swarm-node", "init", "--model", "my model", "FOLDER"]]
