"""The unit that init writes, as systemd reads it."""

from __future__ import annotations

import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from node.storage.run_folder import RunFolder
from tests.node.conftest import Terminal

NAMES = ["plain", "two words", "100% $HOME", 'a "quoted" \\ one']


def keys(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def run_by(value: str) -> list[str]:
    """The words that systemd makes of an ExecStart: quotes, then specifiers, then variables."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_joins_with_this_interpreter_and_config_wherever_it_is_run(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["some where", "/else/where"]))
    unit = Path(terminal.json("init", name, "--systemd")["unit"])
    folder = Path(name).absolute()
    assert unit.parent == folder
    told = keys(unit)
    assert run_by(told["ExecStart"]) == [
        str(Path(sys.executable).absolute()),
        *("-m", "node.cli.main", "join", "--config"),
        str(folder / "node.toml"),
    ]
    assert told["WorkingDirectory"].replace("%%", "%") == str(folder)
    (environment,) = shlex.split(told["Environment"])
    assert environment == f"PYTHONPATH={Path('some where').absolute()}:/else/where"
    assert (told["Restart"], told["KillSignal"]) == ("on-failure", "SIGTERM")
    assert int(told["TimeoutStopSec"]) >= 60
    assert stat.S_IMODE(unit.stat().st_mode) == 0o600


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here to judge")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_wrong_with_it(terminal: Terminal, name: str) -> None:
    unit = terminal.json("init", name, "--systemd")["unit"]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", unit],
        capture_output=True,
        text=True,
        env={**os.environ, "XDG_RUNTIME_DIR": str(Path().absolute())},
    )
    assert (verified.returncode, verified.stderr) == (0, "")


def test_init_says_how_to_start_it(terminal: Terminal) -> None:
    assert terminal("init", "my node", "--systemd") == 0
    unit = Path("my node/swarm-node-my-node.service").absolute()
    assert f"next: systemctl --user link '{unit}'\n" in terminal.out
    assert f"then: systemctl --user enable --now {unit.name}\n" in terminal.out


def test_a_node_that_is_there_gets_a_unit_once_and_keeps_everything_else(
    terminal: Terminal, node: RunFolder
) -> None:
    before = node.config.read_bytes(), node.identity.read_bytes()
    assert terminal("init", "node") == 1
    assert terminal("init", "node", "--systemd") == 0
    assert "node.toml" not in terminal.out
    unit = node.root / "swarm-node-node.service"
    unit.write_text(unit.read_text() + "# mine\n")
    assert terminal("init", "node", "--systemd") == 1
    assert "there is a unit already" in terminal.err
    assert unit.read_text().endswith("# mine\n")
    assert (node.config.read_bytes(), node.identity.read_bytes()) == before


def test_a_path_that_would_write_lines_of_its_own_is_refused(terminal: Terminal) -> None:
    assert terminal("init", "a\n[Service]\nExecStartPre=x", "--systemd") == 1
    assert "a unit cannot name" in terminal.err
    assert not list(Path().rglob("*.service"))
