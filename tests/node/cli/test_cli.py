import os
import platform
import stat
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from docs.reference import PAGES
from node.cli.program import COMMANDS
from node.config.config import Config, load
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from tests.node.packages import declare
from tests.node.programs import ROOT, python

NAMED = """
import sys
sys.argv = ["swarm-node", *sys.argv[1:]]
from node.cli.main import run
try: run()
except SystemExit: pass
heavy = {"torch", "transformers", "hivemind", "pydantic", "numpy", "swarm.member"}
print("loaded:", *heavy & {*sys.modules})
"""
RUN = "import sys; from node.cli.main import run; sys.argv[0] = 'swarm-node'; run()"


@pytest.mark.parametrize("command", [name for rows in COMMANDS.values() for name, *_ in rows])
def test_every_command_has_help_with_an_example(terminal, command):
    assert f"Example: swarm-node {command}" in terminal.ok(command, "--help")


def test_help_shows_every_command_under_its_group(terminal):
    shown = terminal.ok("--help")
    panels = {part.split()[0]: part for part in shown.split("╭─ ")[1:]}
    assert list(panels) == ["Options", *COMMANDS]
    for group, rows in COMMANDS.items():
        assert all(f"│ {name} " in panels[group] for name, *_ in rows)
    assert "│ identity " in panels["Manage"]


def test_help_imports_no_torch_pydantic_or_network_code():
    assert python(NAMED, "--help", check=True).stdout.splitlines()[-1] == "loaded:"


def test_status_of_stopped_node_imports_no_network_code(node):
    node.write_status({"state": "stopped", "peer_id": None, "time": 0.0})
    lines = python(NAMED, "status", "--config", str(node.config), check=True).stdout.splitlines()
    assert lines[0].startswith("state     stopped")
    assert set(lines[-1].split()) <= {"loaded:", "pydantic", "transformers"}


@pytest.mark.parametrize("path", PAGES)
def test_generated_reference_page_is_current(path):
    now = path.read_text(encoding="utf-8")
    assert now == PAGES[path](), "run: python -m docs.reference"


def test_program_without_arguments_prints_first_steps(terminal):
    first, then, more = terminal.ok().splitlines()
    assert first.endswith("swarm-node demo")
    assert "swarm-node init" in then and "swarm-node join" in then
    assert "--help" in more and (ROOT / "docs" / "tutorial.md").is_file() and "tutorial" in more


def test_version_lists_python_torch_and_transport(terminal):
    told = dict(line.split(maxsplit=1) for line in terminal.ok("--version").splitlines())
    assert told["Python"] == platform.python_version() and told["torch"] == version("torch")
    assert f"hivemind {version('hivemind')}" in told["transport"]


@pytest.mark.parametrize(
    ("typed", "offered"), [("jo", "join"), ("join --pe", "--peers"), ("identity e", "export")]
)
def test_a_shell_completes_commands_and_options(typed, offered):
    settings = {"_SWARM_NODE_COMPLETE": "complete_bash", "COMP_WORDS": f"swarm-node {typed}"}
    settings["COMP_CWORD"] = str(settings["COMP_WORDS"].count(" "))
    shown = python("from node.cli.main import run; run()", env=settings, check=True)
    assert offered in shown.stdout.split()


@pytest.mark.parametrize(
    ("target", "typed", "told"),
    [
        ("greeting:hello", "hello --debug --peers 3 x", "hello from a package: True 3 x"),
        ("greeting:gone", "--version", "command hello: greeting:gone cannot be imported"),
    ],
)
def test_plugin_packages_add_commands_or_warn(tmp_path, monkeypatch, target, typed, told):
    code = "def hello(x: str, peers: int = 0, debug: bool = False):\n"
    code += "    print('hello from a package:', debug, peers, x)\n"
    (tmp_path / "greeting.py").write_text(code)
    declare(monkeypatch, tmp_path, "hello", target, "swarm_node.commands")
    paths = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    shown = python(RUN, *typed.split(), env=paths, check=True)
    assert told in shown.stdout or f"warning: {told}" in shown.stderr


@pytest.mark.parametrize("given", [("ask", "wie hei\udcdft du"), ("init", "gr\udcfcn")])
def test_undecodable_argument_is_a_usage_error(terminal, given):
    assert ascii(given[1])[1:-1] in terminal.fails(2, *given) and "LC_ALL" in terminal.err
    assert list(Path().iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="other file systems reject such names")
def test_join_rejects_a_folder_name_that_is_not_utf8(terminal, monkeypatch):
    folder = Path("gr\udcfcn")
    folder.mkdir()
    monkeypatch.chdir(folder)
    told = terminal.fails(2, "join", "--rounds", "1")
    assert "gr\\udcfcn" in told and "Rename it" in told
    assert list(Path().iterdir()) == []


def test_init_writes_a_config_and_a_private_key(terminal):
    facts = terminal.json("init", "node")
    written = tomllib.loads(Path(facts["config"]).read_text())
    assert written["learner"]["lr"] == Config().learner.lr
    assert Identity.load(facts["identity"]).peer_id == facts["peer_id"]
    assert stat.S_IMODE(Path(facts["identity"]).stat().st_mode) == 0o600


def test_init_writes_common_keys_or_all_keys_with_full(terminal):
    short, full = Path("short/node.toml"), Path("full/node.toml")
    terminal.ok("init", "short")
    terminal.ok("init", "--full", "full", "--set", "learner.lr=1e-5")
    keys = [sum(map(len, tomllib.loads(path.read_text()).values())) for path in (short, full)]
    assert keys[0] == 15
    assert keys[1] == sum(len(type(section).model_fields) for _, section in Config())
    assert load(full).learner.lr == 1e-5
    change = {"node": load(short).node}
    assert load(short) == Config().model_copy(update=change)


def test_init_writes_set_values_or_nothing_if_one_is_invalid(terminal):
    given = ("--set", "policy.model=tiny-wide", "--set", "network.lan=true")
    config = terminal.json("init", "node", *given)["config"]
    written = tomllib.loads(Path(config).read_text())
    assert (written["policy"]["model"], written["network"]["lan"]) == ("tiny-wide", True)
    assert "--set" in terminal.fails(2, "init", "node", "--systemd", *given)
    assert "learner.lr" in terminal.fails(2, "init", "other", "--set", "learner.lr=-1")
    assert not Path("other").exists()


def test_init_derives_a_unique_seed_from_the_node_key(terminal):
    seeds = []
    for name in ("anna", "bert"):
        facts = terminal.json("init", name)
        seeds.append(tomllib.loads(Path(facts["config"]).read_text())["node"]["seed"])
        Path(facts["config"]).unlink()
        again = terminal.json("init", name)["config"]
        assert tomllib.loads(Path(again).read_text())["node"]["seed"] == seeds[-1]
    assert len({0, *seeds}) == 3


def test_identity_is_shown_and_copied(terminal, node):
    shown = terminal.json("identity", "show", "--config", "node")
    assert shown["peer_id"] == Identity.load(node.identity).peer_id
    export = ("identity", "export", "--config", "node", "--out", "copy.key")
    terminal.ok(*export)
    assert Path("copy.key").read_bytes() == node.identity.read_bytes()
    assert stat.S_IMODE(Path("copy.key").stat().st_mode) == 0o600
    assert "File exists" in terminal.fails(1, *export)


def test_error_shows_a_traceback_only_with_debug(terminal):
    assert terminal.refuses(1, "status").startswith("error: no node.toml here")
    *trace, last = terminal.fails(1, "status", "--debug").splitlines()
    assert "Traceback" in "\n".join(trace) and last.startswith("error: no node.toml here")


def test_unexpected_error_prints_one_line(terminal, node, monkeypatch):
    def broken(self: RunFolder) -> int:
        raise ZeroDivisionError("odd\nstate")

    monkeypatch.setattr(RunFolder, "holder", broken)
    node.write_status({})
    told = "unexpected ZeroDivisionError: odd state. Add --debug to see where it comes from."
    assert terminal.refuses(1, "status", "--config", "node") == f"error: {told}"
