"""Preflight checks report faults before the node loads or dials anything."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from node.config.config import Config, write_config
from node.errors import ConfigError
from node.plan.machine import emulated
from node.run import preflight
from node.run.preflight import cautions, check_device, check_places, check_start
from node.storage.checkpoints import Checkpoints
from node.storage.run_folder import RunFolder
from swarm.transport.node import PortTaken

ROOT = Path(__file__).parents[3]
WRONG = ["policy.model=/nowhere/at/all", "policy.device=cuda:99"]
WRONG += ["engine.backend=vllm-of-mine", "tasks.files.sums=nowhere.jsonl"]
WATCH = """
import atexit, sys
atexit.register(lambda: print("loaded:", [m for m in ("torch", "hivemind") if m in sys.modules]))
sys.argv = ["swarm-node", *sys.argv[1:]]
from node.cli.main import run
run()
"""


@pytest.fixture
def folder(tmp_path):
    return RunFolder(tmp_path / "run")


def config(**keys):
    return Config.with_overrides({key.replace("__", "."): value for key, value in keys.items()})


@pytest.mark.parametrize(
    ("key", "value", "package", "said"),
    [
        ("policy.lora_rank", 4, "peft", r"policy\.lora_rank: 4\..*'\.\[lora\]'"),
        ("learner.optimizer", "adamw8bit", "bitsandbytes", r"optimizer.*'\.\[adamw8bit\]'"),
        ("monitor.loggers", ["tensorboard"], "tensorboard", r"loggers.*'\.\[tensorboard\]'"),
    ],
)
def test_a_missing_package_is_named(folder, monkeypatch, key, value, package, said):
    wanted, found = Config.with_overrides({key: value}), preflight.find_spec
    check_start(Config(), folder)
    check_start(wanted, folder)
    monkeypatch.setattr(preflight, "find_spec", lambda n: None if n == package else found(n))
    with pytest.raises(ConfigError, match=said):
        check_start(wanted, folder)


def built(monkeypatch, devices=0, **facts):
    """Simulate a machine's number of GPUs and its torch build."""
    monkeypatch.setattr(preflight, "torch_build", lambda: {"__version__": "2.13.0", **facts})
    monkeypatch.setattr(preflight, "gpus", lambda: devices)


def test_device_check_needs_a_gpu_and_leaves_rocm_to_torch(monkeypatch):
    built(monkeypatch, devices=2, cuda="13.0", hip=None)
    for device in ("auto", "cpu", "cuda", "cuda:0", "cuda:1"):
        check_device(device)
    with pytest.raises(ConfigError, match=r"policy\.device: 'cuda:2'.* 2 GPUs"):
        check_device("cuda:2")
    built(monkeypatch, cuda=None, hip="7.0")
    check_device("cuda")
    told = (None, r"2\.13\.0 is built without CUDA"), ("13.0", "driver finds 0 GPUs")
    for cuda, cause in told:
        built(monkeypatch, cuda=cuda, hip=None)
        with pytest.raises(ConfigError, match=rf"'cuda'.*{cause}"):
            check_device("cuda")


@pytest.mark.skipif(sys.platform == "darwin", reason="a Mac may have MPS")
def test_mps_requires_a_mac():
    with pytest.raises(ConfigError, match=r"policy\.device: 'mps'"):
        check_device("mps")


def test_used_port_error_names_the_config_key(folder):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        taken = holder.getsockname()[1]
        listen = f"/ip4/127.0.0.1/tcp/{taken}"
        with pytest.raises(PortTaken, match=rf"network\.listen = {listen}: another process uses"):
            check_places(config(network__listen=[listen]), folder)
        with folder.locked():
            check_places(config(network__listen=[listen]), folder)


@pytest.mark.parametrize("key", ["tasks.files", "sandbox.read"])
def test_missing_file_in_the_config_is_reported(folder, tmp_path, key):
    value = str(tmp_path / "nowhere")
    table = {"sums": value if key == "tasks.files" else [value]}
    with pytest.raises(ConfigError, match=rf"{key}\.sums: .*nowhere"):
        check_places(Config.with_overrides({key: table}), folder)


def test_start_rejects_a_model_other_than_in_checkpoints(folder):
    state, other = {"model": "tiny", "dtype": "float32"}, config(policy__model="tiny-wide")
    Checkpoints(folder.checkpoints).save(1, lambda draft: None, state)
    check_start(Config(), folder)
    with pytest.raises(ConfigError, match=r"policy\.model: 'tiny-wide'.*start from 'tiny'"):
        check_start(other, folder)
    (folder.checkpoints / "step-00000001" / "state.json").write_text("[")
    check_start(other, folder)


@pytest.mark.parametrize("wrong", WRONG)
def test_join_reports_bad_config_before_loading_packages(tmp_path, wrong):
    write_config(tmp_path / "node.toml", Config())
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", WATCH, "join", "--set", wrong]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 2, result.stderr
    assert wrong.partition("=")[0] in result.stderr.splitlines()[-1]
    assert result.stdout.splitlines()[-1] == "loaded: []"


def test_emulated_half_precision_triggers_a_warning(tmp_path, monkeypatch):
    found = tmp_path / "cpuinfo"
    found.write_text("flags : avx2")
    monkeypatch.setattr(preflight, "emulated", lambda dtype: emulated(dtype, found))
    monkeypatch.setattr(preflight, "gpus", lambda: 0)
    half = {"policy__dtype": "bfloat16"}
    (told,) = cautions(config(**half))
    assert told.startswith("policy.dtype: 'bfloat16': this CPU") and "'float32'" in told
    assert cautions(config()) == cautions(config(**half, policy__device="cuda")) == ()
    found.write_text("flags : avx512_bf16")
    assert cautions(config(**half)) == ()


def test_missing_off_policy_correction_triggers_a_warning():
    plain = {"mixture__correction": "none"}
    (told,) = cautions(config(**plain))
    assert told.startswith("mixture.correction: 'none'") and '"better"' in told
    nothing_taken = ({"mixture__external": 0}, {"network__pulls_per_epoch": 0})
    for keys in ({}, {"mixture__correction": "tis"}, *(plain | none for none in nothing_taken)):
        assert cautions(config(**keys)) == ()
