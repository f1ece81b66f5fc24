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
    """What join and seed hand to the node, taken down in the node's place."""
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


def test_peers_takes_every_address_up_to_the_next_option():
    plain = ["--peers", A, "--peers", B, "--json"]
    assert spread(["--peers", A, B, "--json"]) == plain and spread(plain) == plain
    assert spread(["--config", "x", "--peers", A]) == ["--config", "x", "--peers", A]


def test_join_without_a_config_makes_a_node_and_comes_back_to_it(terminal, started):
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
    assert again.network.peers == (A, B), "the way back is kept"
    assert again.schedule.rounds == 0, "the other options were for one run"
    assert folder.identity.read_bytes() == key


def test_a_node_that_joined_over_its_local_network_comes_back_over_it(terminal, started):
    terminal.ok("join", "--lan", "--swarm", "ab" * 32)
    terminal.ok("join")
    first, again = (each[1].network for each in started)
    assert first.lan and first.swarm == "ab" * 32 and again.lan and not again.swarm


@pytest.mark.parametrize("json", [[], ["--json"]])
def test_a_long_wait_is_one_line_where_no_terminal_shows_it(monkeypatch, capsys, json):
    monkeypatch.setattr(sys, "argv", ["swarm-node", "stop", *json])
    monkeypatch.setattr(output, "LONG_WAIT_SECONDS", 0.01)
    with waiting("waiting for the node to end"):
        time.sleep(0.5)
    said = "" if json else "waiting for the node to end\n"
    assert capsys.readouterr() == ("", said)
    monkeypatch.setattr(output, "LONG_WAIT_SECONDS", 60.0)
    with waiting("looking for run folders"):
        pass
    assert capsys.readouterr() == ("", "")


def test_json_keeps_standard_output_for_records(terminal, started):
    assert terminal.ok("join", "--json") == "" and "created a node" in terminal.err
    assert started[0][3].json


def test_join_prefers_the_config_it_is_given(terminal, started):
    terminal("init", ".")
    terminal("init", "other")
    terminal.ok("join", "--config", "other/node.toml", "--set", "learner.lr=1e-5")
    assert started[0][1].learner.lr == 1e-5 and started[0][2].root == Path("other").absolute()
    terminal.ok("join")
    assert started[1][2].root == Path().absolute()


def test_join_makes_a_missing_identity_but_never_replaces_a_lost_one(terminal, node, started):
    node.identity.unlink()
    assert "created an identity" in terminal.ok("join", "--config", "node")
    node.identity.unlink()
    node.journal.touch()
    assert "Put the key back" in terminal.fails(1, "join", "--config", "node")


def test_a_seed_takes_the_same_config(terminal, node, started):
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
def test_a_senseless_command_line_is_refused_and_makes_no_node(terminal, started, args, complaint):
    assert complaint in terminal.refuses(2, "join", *args) and terminal.out == ""
    assert not started and not Path("swarm-run").exists()


def test_where_shared_memory_is_full_nothing_is_made(terminal, started, monkeypatch):
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
def test_an_exported_key_comes_back_where_no_node_is_yet(terminal, node, backup, args, folder):
    Path("empty").mkdir()
    assert f"created a node in {folder}" in terminal.ok(*IMPORT, *args)
    made = RunFolder(Path(folder))
    assert made.identity.read_bytes() == node.identity.read_bytes()
    assert stat.S_IMODE(made.identity.stat().st_mode) == 0o600
    seeds = {tomllib.loads(each.config.read_text())["node"]["seed"] for each in (node, made)}
    assert len(seeds) == 1, "the seed follows from the key"


def test_a_lost_key_is_given_back_and_the_same_key_twice_is_no_error(terminal, node, backup):
    settings = node.config.read_bytes()
    node.identity.unlink()
    args = (*IMPORT, "--config", "node")
    assert terminal.json(*args)["written"] is True
    assert node.identity.read_bytes() == backup.read_bytes()
    assert stat.S_IMODE(node.identity.stat().st_mode) == 0o600
    assert terminal.json(*args)["written"] is False and "already" in terminal.ok(*args)
    assert node.config.read_bytes() == settings


def test_another_key_is_never_overwritten(terminal, node, backup):
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
def test_what_is_no_private_key_is_refused_and_makes_no_node(terminal, content, mode, complaint):
    if content is not None:
        Path("some.key").write_bytes(content)
        Path("some.key").chmod(mode)
    assert complaint in terminal.refuses(1, "identity", "import", "--in", "some.key")
    assert not Path("swarm-run").exists()


def test_a_config_that_is_not_there_is_no_place_for_a_key(terminal, backup):
    assert "swarm-node init" in terminal.fails(1, *IMPORT, "--config", "nowhere/node.toml")
    assert not Path("nowhere").exists()


NAMES = ["plain", "two words", "100% $HOME", 'a "quoted" \\ one']


def keys(unit: Path) -> dict[str, str]:
    lines = [line for line in unit.read_text().splitlines() if "=" in line and line[0] != "#"]
    return dict(line.split("=", 1) for line in lines)


def run_by(value: str) -> list[str]:
    """The words that systemd makes of an ExecStart: quotes, then specifiers, then variables."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(value)]


@pytest.mark.parametrize("name", NAMES)
def test_the_unit_joins_with_this_interpreter_and_config_anywhere(terminal, monkeypatch, name):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["some where", "/else/where"]))
    unit = Path(terminal.json("init", name, "--systemd")["unit"])
    folder = Path(name).absolute()
    assert unit.parent == folder
    told = keys(unit)
    program = [str(Path(sys.executable).absolute()), "-P", "-m", "node.cli.main"]
    command = [*program, "join", "--config", str(folder / "node.toml")]
    assert run_by(told["ExecStart"]) == command, "-P: nothing is imported from the folder"
    assert told["WorkingDirectory"].replace("%%", "%") == str(folder)
    (environment,) = shlex.split(told["Environment"])
    assert environment == f"PYTHONPATH={Path('some where').absolute()}:/else/where"
    assert (told["Restart"], told["KillSignal"]) == ("on-failure", "SIGTERM")
    assert int(told["TimeoutStopSec"]) >= 60 and stat.S_IMODE(unit.stat().st_mode) == 0o600


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not here to judge")
@pytest.mark.parametrize("name", NAMES)
def test_systemd_finds_nothing_wrong_with_it(terminal, name):
    unit = terminal.json("init", name, "--systemd")["unit"]
    command = ["systemd-analyze", "verify", "--user", unit]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(Path().absolute())}
    verified = subprocess.run(command, capture_output=True, text=True, env=env)
    assert (verified.returncode, verified.stderr) == (0, "")


def test_init_says_how_to_start_it(terminal):
    told = terminal.ok("init", "my node", "--systemd")
    unit = Path("my node/swarm-node-my-node.service").absolute()
    assert f"next: systemctl --user link '{unit}'\n" in told
    assert f"then: systemctl --user enable --now {unit.name}\n" in told


def test_a_node_that_is_there_gets_a_unit_once_and_keeps_everything_else(terminal, node):
    before = node.config.read_bytes(), node.identity.read_bytes()
    assert "Edit it, or choose another folder" in terminal.fails(1, "init", "node")
    assert "node.toml" not in terminal.ok("init", "node", "--systemd")
    unit = node.root / "swarm-node-node.service"
    unit.write_text(unit.read_text() + "# mine\n")
    assert "there is already a unit" in terminal.fails(1, "init", "node", "--systemd")
    assert unit.read_text().endswith("# mine\n")
    assert (node.config.read_bytes(), node.identity.read_bytes()) == before


def test_a_path_that_would_write_lines_of_its_own_is_refused(terminal):
    told = terminal.fails(1, "init", "a\n[Service]\nExecStartPre=x", "--systemd")
    assert "a unit cannot name" in told and not list(Path().rglob("*.service"))
