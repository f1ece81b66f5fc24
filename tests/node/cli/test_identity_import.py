"""A key that was exported comes back, and never takes the place of another."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest

from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.conftest import Terminal


@pytest.fixture
def backup(terminal: Terminal, node: RunFolder) -> Path:
    assert terminal("identity", "export", "--config", "node", "--out", "copy.key") == 0
    return Path("copy.key")


@pytest.mark.parametrize(
    ("args", "folder"),
    [([], "swarm-run"), (["--config", "new"], "new"), (["--config", "empty"], "empty")],
)
def test_an_exported_key_comes_back_where_there_is_no_node_yet(
    terminal: Terminal, node: RunFolder, backup: Path, args: list[str], folder: str
) -> None:
    Path("empty").mkdir()
    assert terminal("identity", "import", "--in", "copy.key", *args) == 0
    assert f"made a node in {folder}" in terminal.out
    made = RunFolder(Path(folder))
    assert made.identity.read_bytes() == node.identity.read_bytes()
    assert stat.S_IMODE(made.identity.stat().st_mode) == 0o600
    seeds = {tomllib.loads(each.config.read_text())["node"]["seed"] for each in (node, made)}
    assert len(seeds) == 1, "the seed follows from the key"


def test_a_node_that_lost_its_key_is_given_it_back_and_the_same_key_twice_is_no_error(
    terminal: Terminal, node: RunFolder, backup: Path
) -> None:
    settings = node.config.read_bytes()
    node.identity.unlink()
    args = ("identity", "import", "--in", "copy.key", "--config", "node")
    assert terminal.json(*args)["written"] is True
    assert node.identity.read_bytes() == backup.read_bytes()
    assert stat.S_IMODE(node.identity.stat().st_mode) == 0o600
    assert terminal.json(*args)["written"] is False
    assert terminal(*args) == 0
    assert "already" in terminal.out
    assert node.config.read_bytes() == settings


def test_another_key_is_never_overwritten(
    terminal: Terminal, node: RunFolder, backup: Path
) -> None:
    assert terminal("init", "other") == 0
    other = RunFolder(Path("other"))
    before = other.identity.read_bytes()
    assert terminal("identity", "import", "--in", "copy.key", "--config", "other") == 1
    assert Identity.load(other.identity).peer_id in terminal.err
    assert other.identity.read_bytes() == before


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (None, 0o600, "no key file at"),
        (b"", 0o600, "no usable key"),
        (b"not a key".ljust(68, b"."), 0o600, "no usable key"),
        (Identity.from_seed(b"a" * 32).export()[:-1] + b"x", 0o600, "does not belong to its seed"),
        (Identity.from_seed(b"a" * 32).export() + b"x", 0o600, "no usable key"),
        (Identity.from_seed(b"a" * 32).export(), 0o644, "chmod 600"),
    ],
)
def test_what_is_no_private_key_is_not_imported_and_makes_no_node(
    terminal: Terminal, content: bytes | None, mode: int, complaint: str
) -> None:
    if content is not None:
        Path("some.key").write_bytes(content)
        Path("some.key").chmod(mode)
    assert terminal("identity", "import", "--in", "some.key") == 1
    assert complaint in terminal.err
    assert len(terminal.err.splitlines()) == 1
    assert not Path("swarm-run").exists()


def test_a_config_that_is_not_there_is_no_place_for_a_key(terminal: Terminal, backup: Path) -> None:
    args = ("--in", "copy.key", "--config", "nowhere/node.toml")
    assert terminal("identity", "import", *args) == 1
    assert "swarm-node init" in terminal.err
    assert not Path("nowhere").exists()
