"""The lines that say what comes next can be pasted as they are."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from node.run.background import Detached
from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal
from tests.support import saved_policy

FOUND = ("create", "--name", "sums", "--config")
SEED = ["swarm-node", "bootstrap", "--config", "my node/node.toml"]


def steps(terminal: Terminal) -> list[list[str]]:
    """The words of each command that is named, as a shell reads them."""
    told = [line.partition(": ") for line in terminal.out.splitlines()]
    starts = ("next", "then", "follow it with", "stop it with")
    return [shlex.split(command) for start, _, command in told if start in starts]


def test_a_manifest_in_a_file_of_its_own_is_told_how_it_comes_to_be_a_swarm(terminal):
    terminal.ok("init", "my node")
    terminal.ok(*FOUND, "my node", "--out", "other file.swarm")
    copy, seed = steps(terminal)
    assert seed == SEED
    subprocess.run(copy, check=True)
    pinned = RunFolder(Path("my node")).manifest
    assert pinned.read_bytes() == Path("other file.swarm").read_bytes()
    assert pinned.stat().st_mode & 0o777 == 0o600


def test_a_manifest_beside_that_of_another_swarm_goes_to_another_node(terminal, node):
    assert terminal(*FOUND, "node") == 0 and terminal(*FOUND, "node", "--out", "other.swarm") == 0
    make, copy, seed = steps(terminal)
    assert make == ["swarm-node", "init", "FOLDER"]
    assert copy[-2:] == ["other.swarm", "FOLDER/manifest.swarm"]
    assert seed == ["swarm-node", "bootstrap", "--config", "FOLDER"]


def test_a_manifest_in_the_run_folder_has_only_to_be_seeded(terminal):
    terminal.ok("init", "my node")
    terminal.ok(*FOUND, "my node")
    assert steps(terminal) == [SEED]
    Path("my node/manifest.swarm").unlink()
    terminal.ok(*FOUND, "my node", "--out", "my node/manifest.swarm")
    assert steps(terminal) == [SEED]


def test_paths_with_a_space_stay_one_word_when_a_line_is_pasted(terminal, monkeypatch):
    assert terminal("init", "my node") == 0
    assert steps(terminal)[0][2:4] == ["--config", "my node/node.toml"]
    runs = Detached(7, {"addresses": []}, None, "")
    monkeypatch.setattr("node.run.background.start_detached", lambda arguments, folder: runs)
    listen = 'network.listen=["/ip4/127.0.0.1/tcp/0"]'
    assert terminal("join", "--detach", "--config", "my node", "--set", listen) == 0, terminal.err
    assert [step[-1] for step in steps(terminal)] == ["my node/node.toml"] * 2


def test_a_model_with_a_space_stays_one_word_as_well(terminal: Terminal) -> None:
    saved_policy(Path("my model"))
    assert terminal("plan", "my model") == 0, terminal.err
    assert steps(terminal) == [["swarm-node", "init", "--model", "my model", "FOLDER"]]
