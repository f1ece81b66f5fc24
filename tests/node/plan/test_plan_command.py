import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants

from node.config.config import load
from node.plan import machine
from tests.node.plan.shapes import QWEN_HALF, written


@pytest.mark.parametrize(("more", "heads"), [((), 1), (("--device-memory", "8"), 2)])
def test_plan_lists_every_part_of_each_memory(terminal, more, heads):
    lines = terminal.ok("plan", "tiny", *more).splitlines()
    named = ["GPU", "main", "memory"][-1 - heads :]
    (head,) = [line for line in lines if line.split() == named]
    names = ["weights", "gradients", "optimizer", "activations", "logits", "cache", "engine"]
    for name in [*names, "peak", "usable"]:
        (row,) = [line for line in lines if line.startswith(f"{name}  ")]
        assert len(row) == len(head), row
    assert any(line.startswith("estimated: generates") for line in lines)
    assert any(line.startswith("the largest model") for line in lines)


def with_free_disk(monkeypatch, gigabytes):
    """Set the free disk space of this machine."""
    free = SimpleNamespace(free=round(gigabytes * 1e9))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: free)


def test_plan_for_another_machine_uses_its_sizes(terminal, monkeypatch):
    with_free_disk(monkeypatch, 0.1)
    folder = str(written(Path("half"), QWEN_HALF))
    assert "of disk, and 0.1 GB are free" in terminal.fails(2, "plan", folder)
    told = terminal.json("plan", folder, "--device-memory", "24", "--memory", "64")
    device, peak = told["machine"]["device"], told["peak"]
    assert (device["memory"], device["source"]) == (24 << 30, "by data sheet")
    assert told["config"]["policy.device"] == "cuda"
    assert 0 < peak["device"] < 24 << 30 and peak["memory"] < 64 << 30


def test_plan_json_has_the_same_keys_on_every_machine(terminal):
    cpu = terminal.json("plan", "tiny", "--memory", "16")
    gpu = terminal.json("plan", "tiny", "--memory", "16", "--device-memory", "8")
    keys = {"bytes", "config", "disk", "largest", "machine", "model", "peak", "shape", "speed"}
    assert cpu.keys() == gpu.keys() == keys | {"task_tokens", "training", "useful", "instead"}
    assert all(sorted(row) == ["device", "memory"] for row in cpu["bytes"].values())
    assert sorted(cpu["speed"]) == ["generate", "read", "round", "source", "update", "write"]


def test_init_writes_the_plan_into_a_node_toml_that_loads(terminal, monkeypatch):
    with_free_disk(monkeypatch, 100)
    folder = written(Path("half"), QWEN_HALF)
    memory = terminal.json("plan", str(folder))["config"]
    shown = terminal.ok("init", "--model", str(folder), "mine")
    config = load(Path("mine/node.toml"))
    assert config.policy.model == str(folder.resolve())
    for key in ("policy.dtype", "learner.lr", "engine.max_new_tokens", "mixture.local"):
        section, name = key.split(".")
        assert getattr(getattr(config, section), name) == memory[key]
    assert "peak" in shown
    assert shown.splitlines()[-2].startswith("next: swarm-node join --config")


def test_init_chooses_the_learning_rate_for_lora_unless_set(terminal):
    folder = str(written(Path("half"), QWEN_HALF))
    lora = ("--set", "policy.lora_rank=8")
    for name, more, rate in [("plain", (), 1e-6), ("lora", lora, 1e-5)]:
        terminal.ok("init", "--model", folder, *more, name)
        assert load(Path(name) / "node.toml").learner.lr == rate
    rate = ("--set", "learner.lr=0.002")
    terminal.ok("init", "--model", folder, *lora, *rate, "own")
    assert load(Path("own/node.toml")).learner.lr == 0.002


def test_plan_prints_the_init_command_for_its_settings(terminal):
    for more in ("", " --task-tokens 128"):
        told = terminal.ok("plan", "tiny", *more.split())
        assert f"next: swarm-node init --model tiny{more} FOLDER" in told


def test_init_writes_the_same_config_on_busy_and_idle_machines(terminal, monkeypatch):
    with_free_disk(monkeypatch, 100)
    folder = str(written(Path("half"), QWEN_HALF))

    def written_config(name):
        terminal.ok("init", "--model", folder, name)
        lines = Path(name, "node.toml").read_bytes().splitlines()
        return [line for line in lines if not line.startswith(b"seed = ")]

    idle = written_config("idle")
    busy = "held = bytearray(1 << 29); print(flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) as others:
        assert others.stdout.readline() == b"\n"
        assert written_config("busy") == idle
        others.kill()
    assert "training on this machine is not useful" in terminal.out


def test_init_with_a_model_does_not_overwrite_a_node(terminal, node):
    before = node.config.read_bytes()
    assert terminal("init", "--model", "tiny", "node") != 0
    assert "there is already a config" in terminal.err
    assert terminal("init", "--systemd", "--model", "tiny", "node") == 2
    assert node.config.read_bytes() == before


def test_plan_reports_missing_model_in_one_line(terminal, monkeypatch, tmp_path):
    Path("empty").mkdir()
    for model in ("./nowhere", "/nowhere", "a/b/c"):
        assert "no such folder" in terminal.refuses(2, "plan", model)
    told = terminal.refuses(2, "plan", "./empty")
    assert "there is no config.json in this folder" in told
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE" in terminal.fails(2, "plan", "somebody/some-model")


def test_plan_rejects_too_large_model_with_advice(terminal):
    folder = str(written(Path("half"), QWEN_HALF))
    assert "needs at least" in terminal.fails(2, "plan", folder, "--memory", "1")
    assert "--task-tokens" in terminal.err
    told = terminal.fails(2, "plan", "tiny", "--probe", "--memory", "16")
    assert "--probe" in told, "only this machine can be measured"
