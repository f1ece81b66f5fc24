from __future__ import annotations

import errno
import logging
import os
import sys
from multiprocessing import synchronize
from pathlib import Path
from types import ModuleType

import pytest

from node.cli.options import spread
from node.config.config import Config
from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal

A = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
B = A.replace("4001", "4002")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch):
    """What join and seed hand to the node, taken down in the node's place."""
    calls: list[tuple[str, Config, RunFolder, object]] = []
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    module = ModuleType("node.run.commands")
    for name in ("join", "bootstrap"):
        setattr(module, f"run_{name}", lambda *args, name=name: calls.append((name, *args)))
    monkeypatch.setitem(sys.modules, "node.run.commands", module)
    yield calls
    root.handlers[:] = handlers
    root.setLevel(level)


def test_peers_takes_every_address_up_to_the_next_option() -> None:
    plain = ["--peers", A, "--peers", B, "--json"]
    assert spread(["--peers", A, B, "--json"]) == plain
    assert spread(plain) == plain
    assert spread(["--config", "x", "--peers", A]) == ["--config", "x", "--peers", A]


def test_join_without_a_config_makes_a_node_and_comes_back_to_it(
    terminal: Terminal, started: list
) -> None:
    assert terminal("join", "--peers", A, B, "--mix", "2/6", "--rounds", "3") == 0
    assert "made a node in ./swarm-run" in terminal.out
    name, config, folder, options, _ = started[0]
    assert name == "join" and folder.root == Path("swarm-run").absolute()
    assert config.network.peers == (A, B)
    assert (config.mixture.local, config.mixture.external) == (2, 6)
    assert config.schedule.rounds == 3
    assert not options.json
    key = folder.identity.read_bytes()

    assert terminal("join") == 0
    _, again, folder, *_ = started[1]
    assert again.network.peers == (A, B), "the way back is kept"
    assert again.schedule.rounds == 0, "the other options were for one run"
    assert folder.identity.read_bytes() == key
    assert "made" not in terminal.out


def test_a_node_that_joined_over_its_local_network_comes_back_over_it(
    terminal: Terminal, started: list
) -> None:
    assert terminal("join", "--lan", "--swarm", "ab" * 32) == 0
    assert terminal("join") == 0
    first, again = (each[1].network for each in started)
    assert first.lan and first.swarm == "ab" * 32
    assert again.lan and not again.swarm


def test_join_prefers_the_config_it_is_given(terminal: Terminal, started: list) -> None:
    terminal("init", ".")
    terminal("init", "other")
    assert terminal("join", "--config", "other/node.toml", "--set", "learner.lr=1e-5") == 0
    assert started[0][1].learner.lr == 1e-5
    assert started[0][2].root == Path("other").absolute()
    assert terminal("join") == 0
    assert started[1][2].root == Path().absolute()


def test_join_makes_a_missing_identity_but_never_replaces_a_lost_one(
    terminal: Terminal, node: RunFolder, started: list
) -> None:
    node.identity.unlink()
    assert terminal("join", "--config", "node") == 0
    assert "made an identity" in terminal.out
    node.identity.unlink()
    node.journal.touch()
    assert terminal("join", "--config", "node") == 1
    assert "Put the key back" in terminal.err


def test_json_keeps_standard_output_for_records(terminal: Terminal, started: list) -> None:
    assert terminal("join", "--json") == 0
    assert terminal.out == ""
    assert "made a node" in terminal.err
    assert started[0][3].json


def test_a_seed_takes_the_same_config(terminal: Terminal, node: RunFolder, started: list) -> None:
    assert terminal("bootstrap", "--config", "node", "--peers", A, B) == 0
    assert started[0][0] == "bootstrap"
    assert started[0][1].network.peers == (A, B)
    assert not started[0][1].network.lan
    assert terminal("bootstrap", "--config", "node", "--lan") == 0
    assert started[1][1].network.lan


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--mix", "4-4"], "as in 4/4"),
        (["--mix", "0/0"], "no groups"),
        (["--set", "learner.lr=-1"], "learner.lr: -1"),
        (["--set", "learner.lrr=1"], "did you mean learner.lr"),
        (["--set", "lr"], "section.key=value"),
        (["--peers", "10.0.0.5:4001"], "network.peers"),
    ],
)
def test_a_senseless_command_line_exits_with_2_and_the_remedy(
    terminal: Terminal, started: list, args: list[str], complaint: str
) -> None:
    assert terminal("join", *args) == 2
    assert complaint in terminal.err
    assert len(terminal.err.splitlines()) == 1
    assert not started


@pytest.mark.parametrize("option", ["--peers=nonsense", "--set=learner.lr=-1", "--mix=0/0"])
def test_a_wrong_option_leaves_no_half_made_node_behind(
    terminal: Terminal, started: list, option: str
) -> None:
    assert terminal("join", option) == 2
    assert (terminal.out, len(terminal.err.splitlines())) == ("", 1)
    assert not Path("swarm-run").exists()


def test_where_shared_memory_is_full_nothing_is_made_and_the_line_names_it(
    terminal: Terminal, started: list, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(synchronize, "Semaphore", full)
    assert terminal("join") == 1
    assert "/dev/shm (No space left on device). Free some space there" in terminal.err
    assert len(terminal.err.splitlines()) == 1
    assert not started and not Path("swarm-run").exists()
