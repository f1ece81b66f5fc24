from __future__ import annotations

import os
import platform
import stat
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest

from node.cli import api_reference, reference
from node.cli.program import COMMANDS
from node.config.config import Config
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.conftest import Terminal
from tests.node.packages import declare

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize("command", [name for name, *_ in COMMANDS])
def test_every_command_has_help_with_an_example(terminal: Terminal, command: str) -> None:
    assert terminal(command, "--help") == 0
    assert f"Example: swarm-node {command}" in terminal.out


def test_help_answers_without_loading_torch_pydantic_or_the_network() -> None:
    code = (
        "import sys; sys.argv = ['swarm-node', '--help']\n"
        "from node.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'transformers', 'hivemind', 'pydantic', 'numpy'} & set(sys.modules))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize("written", [reference, api_reference])
def test_a_page_that_is_written_from_the_code_is_current(written: ModuleType) -> None:
    now = written.PAGE.read_text(encoding="utf-8")
    assert now == written.page(), f"run: python -m {written.__name__}"


def test_the_program_alone_says_in_three_lines_what_to_do_first(terminal: Terminal) -> None:
    assert terminal() == 0
    first, then, more = terminal.out.splitlines()
    assert first.endswith("swarm-node demo")
    assert "swarm-node init" in then and "swarm-node join" in then
    assert "--help" in more and (ROOT / "docs" / "tutorial.md").is_file() and "tutorial" in more


def test_the_version_names_the_packages_that_decide_how_it_behaves(terminal: Terminal) -> None:
    assert terminal("--version") == 0
    told = dict(line.split(maxsplit=1) for line in terminal.out.splitlines())
    assert told["Python"] == platform.python_version()
    assert told["torch"] == version("torch")
    assert f"hivemind {version('hivemind')}" in told["transport"]


@pytest.mark.parametrize(
    ("typed", "offered"), [("jo", "join"), ("join --pe", "--peers"), ("identity e", "export")]
)
def test_a_shell_completes_commands_and_options(typed: str, offered: str) -> None:
    words = f"swarm-node {typed}"
    asked = {
        "_SWARM_NODE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(words.count(" ")),
    }
    shown = subprocess.run(
        [sys.executable, "-c", "from node.cli.main import run; run()"],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    assert offered in shown.stdout.split()


def test_a_stopped_node_is_told_about_without_loading_the_network(node: RunFolder) -> None:
    code = (
        f"import sys; sys.argv = ['swarm-node', 'status', '--config', {str(node.config)!r}]\n"
        "from node.cli.main import run\n"
        "try: run()\n"
        "except SystemExit: pass\n"
        "print({'torch', 'hivemind', 'numpy', 'swarm.member'} & set(sys.modules))"
    )
    node.write_status({"state": "stopped", "peer_id": None, "time": 0.0})
    shown = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert shown.stdout.splitlines()[0].startswith("state     stopped")
    assert shown.stdout.splitlines()[-1] == "set()"


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("greeting:hello", "hello from a package"),
        ("greeting:gone", "warning: command hello: greeting:gone cannot be imported"),
    ],
)
def test_a_package_adds_a_command_and_a_broken_one_takes_none_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, told: str
) -> None:
    (tmp_path / "greeting.py").write_text("def hello():\n    print('hello from a package')\n")
    declare(monkeypatch, tmp_path, "hello", target, "swarm_node.commands")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    commands = "import sys; from node.cli.main import run; sys.argv[0] = 'swarm-node'; run()"
    shown = subprocess.run(
        [sys.executable, "-c", commands, "hello" if "gone" not in target else "--version"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told in shown.stdout + shown.stderr


def test_an_unknown_command_is_a_usage_error(terminal: Terminal) -> None:
    assert terminal("jion") == 2
    assert "Traceback" not in terminal.err


@pytest.mark.parametrize("given", [("ask", "wie hei\udcdft du"), ("init", "gr\udcfcn")])
def test_an_argument_that_is_no_text_is_a_usage_error(
    terminal: Terminal, given: tuple[str, str]
) -> None:
    assert terminal(*given) == 2
    assert ascii(given[1])[1:-1] in terminal.err and "LC_ALL" in terminal.err
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems take text alone")
def test_a_folder_whose_name_is_no_text_is_refused_before_anything_is_made(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path("gr\udcfcn")
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert terminal("join", "--rounds", "1") == 2
    assert "gr\\udcfcn" in terminal.err and "Rename it" in terminal.err
    assert list(Path().iterdir()) == []


def test_init_writes_a_config_and_a_private_key(terminal: Terminal) -> None:
    facts = terminal.json("init", "node")
    written = tomllib.loads(Path(facts["config"]).read_text())
    assert written["learner"]["lr"] == Config().learner.lr
    assert Identity.load(facts["identity"]).peer_id == facts["peer_id"]
    assert stat.S_IMODE(Path(facts["identity"]).stat().st_mode) == 0o600


def test_each_new_node_has_a_seed_of_its_own_from_its_key(terminal: Terminal) -> None:
    seeds = []
    for name in ("anna", "bert"):
        facts = terminal.json("init", name)
        seeds.append(tomllib.loads(Path(facts["config"]).read_text())["node"]["seed"])
        Path(facts["config"]).unlink()
        again = terminal.json("init", name)["config"]
        assert tomllib.loads(Path(again).read_text())["node"]["seed"] == seeds[-1]
    assert len({0, *seeds}) == 3


def test_init_overwrites_nothing(terminal: Terminal, node: RunFolder) -> None:
    before = node.config.read_bytes(), node.identity.read_bytes()
    assert terminal("init", "node") == 1
    assert "Edit it, or choose another folder" in terminal.err
    assert (node.config.read_bytes(), node.identity.read_bytes()) == before


def test_identity_is_shown_and_copied(terminal: Terminal, node: RunFolder) -> None:
    shown = terminal.json("identity", "show", "--config", "node")
    assert shown["peer_id"] == Identity.load(node.identity).peer_id
    assert terminal("identity", "export", "--config", "node", "--out", "copy.key") == 0
    assert Path("copy.key").read_bytes() == node.identity.read_bytes()
    assert stat.S_IMODE(Path("copy.key").stat().st_mode) == 0o600
    assert terminal("identity", "export", "--config", "node", "--out", "copy.key") == 1
    assert "File exists" in terminal.err


def test_a_readable_key_is_refused_in_one_line_with_the_remedy(
    terminal: Terminal, node: RunFolder
) -> None:
    node.identity.chmod(0o644)
    assert terminal("identity", "show", "--config", "node") == 1
    assert "chmod 600" in terminal.err
    assert len(terminal.err.splitlines()) == 1


def test_an_error_shows_its_trace_only_with_debug(terminal: Terminal) -> None:
    assert terminal("status") == 1
    assert terminal.err.startswith("error: no node.toml here")
    assert len(terminal.err.splitlines()) == 1
    assert terminal("status", "--debug") == 1
    assert "Traceback" in terminal.err
    assert terminal.err.splitlines()[-1].startswith("error: no node.toml here")


def test_an_unexpected_error_is_one_line_as_well(
    terminal: Terminal, node: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: RunFolder) -> int:
        raise ZeroDivisionError("odd\nstate")

    monkeypatch.setattr(RunFolder, "holder", broken)
    node.write_status({})
    assert terminal("status", "--config", "node") == 1
    assert terminal.err == (
        "error: unexpected ZeroDivisionError: odd state. Add --debug to see where it comes from.\n"
    )
