"""What cannot work is said before anything is loaded or dialled."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from node.config.config import Config, write_config
from node.errors import ConfigError, NodeError
from node.run import preflight as preflight_module
from node.run.preflight import cautions, check_device, check_places, check_start
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from swarm.transport.node import PortTaken

ROOT = Path(__file__).parents[3]
WATCH = """
import atexit, sys
atexit.register(lambda: print("loaded:", [m for m in ("torch", "hivemind") if m in sys.modules]))
sys.argv = ["swarm-node", *sys.argv[1:]]
from node.cli.main import run
run()
"""


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with closing(socket.socket()) as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def config(**keys: object) -> Config:
    return Config.with_overrides({key.replace("__", "."): value for key, value in keys.items()})


def without(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """Let packages be missing."""
    found = preflight_module.find_spec

    def spec(name: str) -> ModuleSpec | None:
        return None if name in packages else found(name)

    monkeypatch.setattr(preflight_module, "find_spec", spec)


def test_what_init_writes_can_start(folder: RunFolder) -> None:
    check_start(Config(), folder)


@pytest.mark.parametrize(
    ("keys", "package", "said"),
    [
        ({"policy.lora_rank": 4}, "peft", r"policy\.lora_rank: 4\..*swarm-node\[lora\]"),
        ({"learner.optimizer": "adamw8bit"}, "bitsandbytes", r"optimizer.*swarm-node\[adamw8bit\]"),
        (
            {"monitor.loggers": ["tensorboard"]},
            "tensorboard",
            r"loggers.*node\[tensorboard\]",
        ),
    ],
)
def test_a_package_that_an_extra_brings_is_missed_at_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, keys: dict, package: str, said: str
) -> None:
    check_start(Config.with_overrides(keys), folder)
    without(monkeypatch, package)
    with pytest.raises(ConfigError, match=said):
        check_start(Config.with_overrides(keys), folder)


def built(monkeypatch: pytest.MonkeyPatch, devices: int = 0, **facts: object) -> None:
    """A machine with so many GPUs, and a torch built in some way."""
    monkeypatch.setattr(preflight_module, "torch_build", lambda: {"__version__": "2.13.0", **facts})
    monkeypatch.setattr(preflight_module, "gpus", lambda: devices)


def test_a_gpu_is_asked_for_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, devices=2, cuda="13.0", hip=None)
    for device in ("auto", "cpu", "cuda", "cuda:0", "cuda:1"):
        check_device(device)
    with pytest.raises(ConfigError, match=r"policy\.device: 'cuda:2'.* 2 GPUs"):
        check_device("cuda:2")


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"cuda": None, "hip": None}, r"'cuda'.*2\.13\.0 is built without CUDA"),
        ({"cuda": "13.0", "hip": None}, r"'cuda'.*driver shows 0 GPUs"),
    ],
)
def test_a_gpu_that_is_not_there_is_told_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, facts: Mapping[str, object], said: str
) -> None:
    built(monkeypatch, **facts)
    with pytest.raises(ConfigError, match=said):
        check_device("cuda")


def test_a_build_for_other_gpus_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    built(monkeypatch, cuda=None, hip="7.0")
    check_device("cuda")


@pytest.mark.skipif(sys.platform == "darwin", reason="Macs may have it")
def test_only_macs_have_their_device() -> None:
    with pytest.raises(ConfigError, match=r"policy\.device: 'mps'"):
        check_device("mps")


def test_a_port_that_somebody_holds_is_named_with_its_key(folder: RunFolder, taken: int) -> None:
    with pytest.raises(NodeError, match=rf"monitor\.prometheus_port.*in use.*{taken}"):
        check_places(config(monitor__prometheus_port=taken), folder)
    listen = f"/ip4/127.0.0.1/tcp/{taken}"
    with pytest.raises(PortTaken, match=rf"network\.listen = {listen}: another process uses"):
        check_places(config(network__listen=[listen]), folder)
    with folder.locked():
        check_places(config(network__listen=[listen]), folder)


def test_a_file_that_the_config_names_is_missed_at_once(folder: RunFolder, tmp_path: Path) -> None:
    for key in ("tasks.files", "sandbox.read"):
        value = str(tmp_path / "nowhere")
        table = {"sums": value if key == "tasks.files" else [value]}
        with pytest.raises(ConfigError, match=rf"{key}\.sums: .*nowhere"):
            check_places(Config.with_overrides({key: table}), folder)


def test_another_model_than_the_run_was_begun_with_is_refused_before_it_is_loaded(
    folder: RunFolder,
) -> None:
    state = {"model": "tiny", "dtype": "float32"}
    Checkpoints(folder.checkpoints).save(1, lambda draft: None, state)
    check_start(Config(), folder)
    with pytest.raises(ConfigError, match=r"policy\.model: 'tiny-wide'.*go back to 'tiny'"):
        check_start(config(policy__model="tiny-wide"), folder)
    (folder.checkpoints / "step-00000001" / "state.json").write_text("[")
    check_start(config(policy__model="tiny-wide"), folder)


@pytest.mark.parametrize(
    "wrong",
    [
        "policy.model=/nowhere/at/all",
        "policy.device=cuda:99",
        "engine.kind=vllm-of-mine",
        "tasks.files.sums=nowhere.jsonl",
    ],
)
def test_join_says_what_cannot_work_before_it_loads_anything(tmp_path: Path, wrong: str) -> None:
    write_config(tmp_path / "node.toml", Config())
    ended = subprocess.run(
        [sys.executable, "-c", WATCH, "join", "--set", wrong],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert wrong.partition("=")[0] in ended.stderr.splitlines()[-1]
    assert ended.stdout.splitlines()[-1] == "loaded: []"


def test_learning_from_others_as_from_oneself_is_warned_of_where_anything_is_taken() -> None:
    (told,) = cautions(config(mixture__correction="none"))
    assert told.startswith("mixture.correction: 'none'") and '"better"' in told
    for keys in (
        {},
        {"mixture__correction": "tis"},
        {"mixture__correction": "none", "mixture__external": 0},
        {"mixture__correction": "none", "network__pulls_per_epoch": 0},
    ):
        assert cautions(config(**keys)) == ()
