import os
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from node.monitor.record import RoundRecord
from node.monitor.sinks import JsonLinesFile
from node.network.creation import create_swarm
from node.policy.policy import Policy
from node.storage.checkpoints import Checkpoints
from protocol.identity import Identity
from protocol.manifest import swarm_id
from swarm.common.clock import SystemClock
from swarm.common.counters import Counters
from swarm.groups import GroupKey
from swarm.journal import Journal
from swarm.pool import Pool
from tests.node.conftest import Terminal
from tests.support import saved_policy
from tests.swarm.network_parts import identity

AT = ("--config", "node")


@pytest.fixture
def history(node):
    """Return checkpoints of rounds 10, 20 and 30; round 20 is the best."""
    signed = create_swarm(Identity.load(node.identity), name="sums")
    node.manifest.write_bytes(signed)
    checkpoints = Checkpoints(node.checkpoints, keep=3)
    for number, reward in ((10, 0.2), (20, 0.69), (30, 0.48)):
        state = {"round": number, "policy_step": number - 3}
        checkpoints.save(number, partial(saved_policy, seed=number), state)
        checkpoints.rewards.note(number, swarm_id(signed).hex(), reward)
    return checkpoints


def listed(terminal: Terminal, *keys: str) -> list[tuple[object, ...]]:
    return [tuple(each[key] for key in keys) for each in terminal.json("checkpoints", *AT)]


def rows(terminal: Terminal) -> list[list[str]]:
    lines = terminal.ok("checkpoints", *AT).splitlines()
    return [line.split("│") for line in lines if "│" in line]


def test_checkpoints_lists_rounds_and_rewards_at_any_width(terminal, history, monkeypatch):
    output = listed(terminal, "round", "policy_step", "reward", "best")
    assert output == [(10, 7, 0.2, False), (20, 17, 0.69, True), (30, 27, 0.48, False)]
    for size, age, rolled_back in listed(terminal, "bytes", "age_s", "rolled_back"):
        assert size > 1000 and age >= 0 and not rolled_back
    shown = {row[1].strip(): " ".join(row) for row in rows(terminal)}
    assert "0.690" in shown["20"] and "best" in shown["20"] and "ago" in shown["20"]
    assert "newest" in shown["30"] and "best" not in shown["30"]
    wide = [row[1:4] for row in rows(terminal)]
    monkeypatch.setenv("COLUMNS", "40")
    assert [row[1:4] for row in rows(terminal)] == wide


def test_commands_report_missing_checkpoints(terminal, node):
    assert "no checkpoint yet" in terminal.fails(1, "checkpoints", *AT)
    assert terminal.json("checkpoints", *AT) == [] and terminal("rollback", *AT, "--to", "10") == 2
    assert "none yet" in terminal.err


def test_rollback_selects_an_earlier_best_or_later_round(terminal, history):
    output = terminal.json("rollback", *AT, "--to", "best")
    assert output == {"round": 20, "policy_step": 17, "set_aside": [30]}
    assert history.steps() == [10, 20]
    shown = terminal.ok("rollback", *AT, "--to", "10")
    assert "policy step 7; set aside: 20\nnext: swarm-node join --config" in shown
    assert listed(terminal, "round", "rolled_back") == [(10, False), (20, True), (30, True)]
    assert terminal.json("rollback", *AT, "--to", "30")["set_aside"] == []
    assert history.steps() == [10, 30]


def test_checkpoint_is_selected_by_round_folder_or_step(terminal, history):
    state = {"round": 40, "policy_step": 30}
    history.save(40, partial(saved_policy, seed=40), state)
    folder = str(history.path(30))
    for given, number in (("30", 30), (folder, 30), ("step-00000020", 20), ("27", 30), ("17", 20)):
        facts = terminal.json("export", *AT, "--out", f"as-{Path(given).name}", "--step", given)
        assert facts["state"]["round"] == number
    for given, number in ((folder, 30), ("step-00000030", 30), ("17", 20)):
        assert terminal.json("rollback", *AT, "--to", given)["round"] == number
    assert "there are: 20" in terminal.fails(2, "rollback", *AT, "--to", "away/step-00000030")


def test_best_checkpoint_prefers_one_not_rolled_back(terminal, history, node):
    history.rewards.note(10, swarm_id(node.manifest.read_bytes()).hex(), 0.69)
    terminal.ok("rollback", *AT, "--to", "10")
    assert listed(terminal, "round", "best") == [(10, True), (20, False), (30, False)]


def test_status_shows_the_round_after_a_rollback(terminal, history, node):
    with closing(JsonLinesFile(node.metrics, 1 << 20)) as metrics:
        for number in (9, 10, 11, 30):
            metrics.write(RoundRecord(round=number, policy_step=number, time=0.0, reward_local=0.5))
    node.write_status({"state": "stopped", "record": {"round": 30}, "peers": [], "time": 0.0})
    terminal.ok("rollback", *AT, "--to", "10")
    output = terminal.json("status", *AT)
    assert (output["record"]["round"], output["state"]) == (10, "stopped")


@pytest.mark.parametrize("damaged", ["status", "metrics"])
def test_rollback_works_and_warns_with_damaged_reports(terminal, history, node, caplog, damaged):
    node.write_status({"state": "stopped", "record": {"round": 30}, "peers": [], "time": 0.0})
    getattr(node, damaged).write_text("[]\n")
    assert "rolled back to round 10" in terminal.ok("rollback", *AT, "--to", "10")
    assert f"{getattr(node, damaged).name}. Delete" in caplog.text and history.steps() == [10]


def used(node, author, *steps):
    clock = SystemClock()
    with closing(Journal(node.journal, clock)) as journal:
        pool = Pool(journal, 8, 60.0, clock, Counters())
        for step in steps:
            pool.record_update(step, [], [GroupKey(author, 1, step)])


def test_block_undo_reverts_updates_of_a_peer(terminal, history, node):
    anna, ben = identity("anna"), identity("ben")
    used(node, anna.author, 18, 25)
    used(node, ben.author, 3)
    with closing(Journal(node.journal, SystemClock())) as journal:
        journal.backup()
    node.journal.unlink()  # The command must also find rows that only the backup has.
    output = terminal.json("block", anna.peer_id, "--undo", *AT)
    checkpoint = {"round": 20, "policy_step": 17, "set_aside": [30]}
    assert output["undone"] == {"updates": [18, 25], "checkpoint": checkpoint}
    assert output["blocked"] == [{"peer_id": anna.peer_id}] and history.steps() == [10, 20]
    failed = terminal.fails(1, "block", ben.peer_id, "--undo", *AT)
    assert "older than policy step 3" in failed and f"blocks {ben.peer_id}" in terminal.out
    assert history.steps() == [10, 20]


def test_block_undo_reverts_nothing_for_an_unused_peer(terminal, history, node):
    used(node, identity("anna").author, 18)
    shown = terminal.ok("block", identity("ben").peer_id, "--undo", *AT)
    assert "no update used their groups" in shown and history.steps() == [10, 20, 30]
    with node.locked():
        given = "block", identity("anna").peer_id, "--undo", *AT
        assert "already used by process" in terminal.fails(1, *given)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("25", "there are: 10 (policy step 7), 20"),
        ("-3", "Give a round, best, or"),
        ("x", "step-00000012"),
    ],
)
def test_rollback_lists_choices_and_refuses_running_nodes(terminal, history, node, to, said):
    assert to in terminal.fails(2, "rollback", *AT, "--to", to) and said in terminal.err
    with node.locked():
        assert "already used by process" in terminal.fails(1, "rollback", *AT, "--to", "10")
    assert history.steps() == [10, 20, 30]


def test_command_refuses_a_used_folder_before_any_work(terminal, node, monkeypatch):
    monkeypatch.setattr("node.run.preflight.check_start", lambda *_: pytest.fail("it checked"))
    monkeypatch.setattr("node.monitor.logs.start_logging", lambda *_: pytest.fail("it logged"))
    with node.locked():
        for command in ("join", "bootstrap", "observe"):
            said = terminal.fails(1, command, *AT)
            assert f"already used by process {os.getpid()}" in said


@pytest.mark.parametrize(("choice", "number"), [((), 30), (("--best",), 20), (("--step", "7"), 10)])
def test_export_and_eval_use_the_selected_checkpoint(terminal, history, choice, number):
    facts = terminal.json("export", *AT, "--out", "model", *choice)
    assert facts["state"]["round"] == number
    folders = (Path("model"), history.path(number))
    exported, saved = (load_file(folder / "model.safetensors") for folder in folders)
    assert all(torch.equal(exported[name], saved[name]) for name in saved)
    few = ("--tasks", "4", "--samples", "1", "--set", "engine.max_new_tokens=2")
    assert terminal.json("eval", *AT, *few, *choice)["model"] == str(history.path(number))


def test_failed_export_leaves_no_files_and_can_be_retried(terminal, history, node, monkeypatch):
    export, save = ("export", *AT, "--out", "model"), Policy.save

    def full(policy, folder):
        save(policy, folder)
        raise SafetensorError("Error while serializing: I/O error: (os error 28)")

    with monkeypatch.context() as patched:
        patched.setattr(Policy, "save", full)
        assert "Free some space there" in terminal.fails(1, *export)
    assert list(Path("model").iterdir()) == []
    node.metrics.write_text("[]\n")
    assert "Delete that line" in terminal.fails(1, *export)
    node.metrics.unlink()
    assert "wrote model" in terminal.ok(*export)


@pytest.mark.parametrize("command", [("export", "--out", "model"), ("eval", "--tasks", "1")])
def test_node_keeps_a_checkpoint_while_it_is_loaded(terminal, history, command, monkeypatch):
    load = Policy.load

    def late(config):
        for number in (40, 50, 60):
            history.save(number, lambda folder: None, {})
        return load(config)

    monkeypatch.setattr(Policy, "load", late)
    terminal.ok(*command, *AT, "--step", "7")
    assert 10 in history.steps()


@pytest.mark.parametrize("command", [("export", "--out", "model"), ("eval",)])
def test_command_reports_an_invalid_choice(terminal, history, command):
    output = terminal.fails(2, *command, *AT, "--step", "8")
    assert "--step: 8" in output and "10 (policy step 7), 20 (policy step 17)" in output
    assert "--step 7 and --best" in terminal.fails(2, *command, *AT, "--step", "7", "--best")
    (history.folder / "rewards.json").unlink()
    assert "schedule.eval_every" in terminal.fails(2, *command, *AT, "--best")
    assert not Path("model").exists()
