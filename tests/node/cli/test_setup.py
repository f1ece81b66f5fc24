import errno
import logging
import os
import shlex
import shutil
import stat
import subprocess
import sys
import time
import tomllib
from multiprocessing import synchronize
from pathlib import Path
from types import ModuleType

import pytest

from node.cli.options import spread, waiting
from node.monitor import output
from node.storage.run_folder import RunFolder
from protocol.identity import Identity

A = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
B = A.replace("4001", "4002")


@pytest.fixture
def started(monkeypatch):
    """Record the arguments with which join and bootstrap start a node."""
    calls = []
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    trains, serves = ModuleType("node.run.node"), ModuleType("node.run.untrained")
    trains.run_join = lambda *args: calls.append(("join", *args))
    serves.run_untrained = lambda *args: calls.append(args)
    for module in (trains, serves):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield calls
    root.handlers[:] = handlers
    root.setLevel(level)


def test_peers_option_accepts_several_addresses():
    plain = ["--peers", A, "--peers", B, "--json"]
    assert spread(["--peers", A, B, "--json"]) == plain and spread(plain) == plain
    assert spread(["--config", "x", "--peers", A]) == ["--config", "x", "--peers", A]


def test_join_without_config_creates_and_reuses_a_node(terminal, started):
    told = terminal.ok("join", "--peers", A, B, "--mix", "2/6", "--rounds", "3")
    assert "created a node in ./swarm-run" in told
    name, config, folder, options, _ = started[0]
    assert name == "join" and folder.root == Path("swarm-run").absolute()
    assert config.network.peers == (A, B)
    assert (config.mixture.local, config.mixture.external) == (2, 6) and config.schedule.rounds == 3
    assert not options.json
    key = folder.identity.read_bytes()
    assert "created" not in terminal.ok("join")
    _, again, folder, *_ = started[1]
    assert again.network.peers == (A, B), "the peers are saved"
    assert again.schedule.rounds == 0, "other options apply to one run"
    assert folder.identity.read_bytes() == key


def test_node_rejoins_over_the_local_network(terminal, started):
    terminal.ok("join", "--lan", "--swarm", "ab" * 32)
    terminal.ok("join")
    first, again = (each[1].network for each in started)
    assert first.lan and first.swarm == "ab" * 32 and again.lan and not again.swarm


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_long_wait_prints_one_line_without_a_terminal(monkeypatch, capsys, json):
    monkeypatch.setattr(sys, "argv", ["swarm-node", "stop", *json])
    monkeypatch.setattr(output, "LONG_WAIT_SECONDS", 0.01)
    with waiting("waiting for the node to end"):
        time.sleep(0.5)
    message = "" if json else "waiting for the node to end\n"
    assert capsys.readouterr() == ("", message)
    monkeypatch.setattr(output, "LONG_WAIT_SECONDS", 60.0)
    with waiting("looking for run folders"):
        pass
    assert capsys.readouterr() == ("", "")


def test_json_keeps_standard_output_for_records(terminal, started):
    assert terminal.ok("join", "--json") == "" and "created a node" in terminal.err
    assert started[0][3].json


def test_join_prefers_a_given_config(terminal, started):
    terminal("init", ".")
    terminal("init", "other")
    terminal.ok("join", "--config", "other/node.toml", "--set", "learner.lr=1e-5")
    assert started[0][1].learner.lr == 1e-5 and started[0][2].root == Path("other").absolute()
    terminal.ok("join")
    assert started[1][2].root == Path().absolute()


def test_join_creates_a_missing_key_but_not_a_lost_one(terminal, node, started):
    node.identity.unlink()
    assert "created an identity" in terminal.ok("join", "--config", "node")
    node.identity.unlink()
    node.journal.touch()
    assert "Put the key back" in terminal.fails(1, "join", "--config", "node")


def test_bootstrap_takes_join_options(terminal, node, started):
    for options in (["--peers", A, B], ["--lan"]):
        terminal.ok("bootstrap", "--config", "node", *options)
    (kind, first, *_), (_, again, *_) = started
    assert (kind, first.network.peers, first.network.lan) == ("bootstrap", (A, B), False)
    assert again.network.lan


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["--mix", "4-4"], "as in 4/4"),
        (["--mix", "0/0"], "no groups"),
        (["--set", "learner.lr=-1"], "learner.lr: -1"),
        (["--set", "learner.lrr=1"], "did you mean learner.lr"),
        (["--set", "lr"], "section.key=value"),
        (["--peers", "10.0.0.5:4001"], "network.peers"),
        (["--peers=nonsense"], "network.peers"),
        (["--set=learner.lr=-1"], "learner.lr: -1"),
        (["--mix=0/0"], "no groups"),
    ],
)
def test_join_rejects_bad_options_and_creates_no_node(terminal, started, args, complaint):
    assert complaint in terminal.refuses(2, "join", *args) and terminal.out == ""
    assert not started and not Path("swarm-run").exists()


def test_join_reports_full_shared_memory_first(terminal, started, monkeypatch):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(synchronize, "Semaphore", full)
    told = "/dev/shm (No space left on device). Free some space there"
    assert told in terminal.refuses(1, "join")
    assert not started and not Path("swarm-run").exists()


IMPORT = ("identity", "import", "--in", "copy.key")


@pytest.fixture
def backup(terminal, node):
    terminal.ok("identity", "export", "--config", "node", "--out", "copy.key")
    return Path("copy.key")


@pytest.mark.parametrize(
    ("args", "folder"),
    [([], "swarm-run"), (["--config", "new"], "new"), (["--config", "empty"], "empty")],
)
def test_import_creates_a_node_from_an_exported_key(terminal, node, backup, args, folder):
    Path("empty").mkdir()
    assert f"created a node in {folder}" in terminal.ok(*IMPORT, *args)
    made = RunFolder(Path(folder))
    assert made.identity.read_bytes() == node.identity.read_bytes()
    assert stat.S_IMODE(made.identity.stat().st_mode) == 0o600
    seeds = {tomllib.loads(each.config.read_text())["node"]["seed"] for each in (node, made)}
    assert len(seeds) == 1, "the random seed is derived from the key"


def test_import_restores_a_lost_key_and_can_be_repeated(terminal, node, backup):
    settings = node.config.read_bytes()
    node.identity.unlink()
    args = (*IMPORT, "--config", "node")
    assert terminal.json(*args)["written"] is True
    assert node.identity.read_bytes() == backup.read_bytes()
    assert stat.S_IMODE(node.identity.stat().st_mode) == 0o600
    assert terminal.json(*args)["written"] is False and "already" in terminal.ok(*args)
    assert node.config.read_bytes() == settings


def test_import_never_overwrites_a_key(terminal, node, backup):
    terminal.ok("init", "other")
    other = RunFolder(Path("other"))
    before = other.identity.read_bytes()
    told = terminal.fails(1, *IMPORT, "--config", "other")
    assert Identity.load(other.identity).peer_id in told
    assert other.identity.read_bytes() == before


KEY = Identity.from_seed(b"a" * 32).export()


@pytest.mark.parametrize(
    ("content", "mode", "complaint"),
    [
        (None, 0o600, "no key file at"),
        (b"", 0o600, "no usable key"),
        (b"not a key".ljust(68, b"."), 0o600, "no usable key"),
        (KEY[:-1] + b"x", 0o600, "does not belong to its seed"),
        (KEY + b"x", 0o600, "no usable key"),
        (KEY, 0o644, "chmod 600"),
    ],
)
def test_import_rejects_invalid_keys_and_creates_no_node(terminal, content, mode, complaint):
    if content is not None:
        Path("some.key").write_bytes(content)
        Path("some.key").chmod(mode)
    assert complaint in terminal.refuses(1, "identity", "import", "--in", "some.key")
    assert not Path("swarm-run").exists()


def test_import_rejects_a_missing_config(terminal, backup):
    assert "swarm-node init" in terminal.fails(1, *IMPORT, "--config", "nowhere/node.toml")
    assert not Path("nowhere").exists()


NAMES = ["plain", "two words", "100% $HOME", 'a "quoted" \\ one']


def keys(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def run_by(value: str) -> list[str]:
    """Split an ExecStart as systemd does: quotes, then specifiers, then variables."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]


@pytest.mark.parametrize("name", NAMES)
def test_systemd_unit_uses_this_interpreter_and_config(terminal, monkeypatch, name):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["some where", "/else/where"]))
    unit = Path(terminal.json("init", name, "--systemd")["unit"])
    folder = Path(name).absolute()
    assert unit.parent == folder
    told = keys(unit)
    program = [str(Path(sys.executable).absolute()), "-P", "-m", "node.cli.main"]
    command = [*program, "join", "--config", str(folder / "node.toml")]
    assert run_by(told["ExecStart"]) == command, "-P prevents imports from the folder"
    assert told["WorkingDirectory"].replace("%%", "%") == str(folder)
    (environment,) = shlex.split(told["Environment"])
    assert environment == f"PYTHONPATH={Path('some where').absolute()}:/else/where"
    assert (told["Restart"], told["KillSignal"]) == ("on-failure", "SIGTERM")
    assert int(told["TimeoutStopSec"]) >= 60 and stat.S_IMODE(unit.stat().st_mode) == 0o600


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_accepts_the_unit(terminal, name):
    unit = terminal.json("init", name, "--systemd")["unit"]
    command = ["systemd-analyze", "verify", "--user", unit]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(Path().absolute())}
    verified = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_init_prints_next_steps(terminal):
    told = terminal.ok("init", "my node", "--systemd")
    unit = Path("my node/swarm-node-my-node.service").absolute()
    assert f"next: systemctl --user link '{unit}'\n" in told
    assert f"then: systemctl --user enable --now {unit.name}\n" in told


def test_init_adds_a_unit_once_to_an_existing_node(terminal, node):
    before = node.config.read_bytes(), node.identity.read_bytes()
    assert "Edit it, or choose another folder" in terminal.fails(1, "init", "node")
    assert "node.toml" not in terminal.ok("init", "node", "--systemd")
    unit = node.root / "swarm-node-node.service"
    unit.write_text(unit.read_text() + "# mine\n")
    assert "there is already a unit" in terminal.fails(1, "init", "node", "--systemd")
    assert unit.read_text().endswith("# mine\n")
    assert (node.config.read_bytes(), node.identity.read_bytes()) == before


def test_init_rejects_a_path_with_newlines_for_a_unit(terminal):
    told = terminal.fails(1, "init", "a\n[Service]\nExecStartPre=x", "--systemd")
    assert "a unit cannot name" in told and not list(Path().rglob("*.service"))
