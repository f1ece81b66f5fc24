"""What cannot fit is refused before anything is loaded, with the keys that would make it fit."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from node.config.config import Config
from node.doctor.machine import check_model_memory
from node.errors import ConfigError
from node.plan import model_shape as module
from node.plan.memory import estimate
from node.plan.model_shape import (
    by_sizes,
    check_memory,
    help_for,
    in_files,
    least,
    least_weights,
    shape_of,
)
from node.policy.model_source import shipped_folder
from node.run.preflight import check_start
from node.storage.run_folder import RunFolder
from tests.node.plan.shapes import LLAMA_3B, QWEN3_MOE, QWEN_HALF, REAL, written

GIB = 1 << 30


@pytest.fixture
def sixteen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine of 16 GiB, half of them free, with no swap and no GPU."""
    monkeypatch.setattr(module, "main_memory", lambda: (16 * GIB, 8 * GIB))
    monkeypatch.setattr(module, "gpu_memory", lambda _: 0)
    swap = type("Swap", (), {"total": 0})
    monkeypatch.setattr(module.psutil, "swap_memory", lambda: swap)


def config_of(folder: Path, **keys: object) -> Config:
    named = {key.replace("__", "."): value for key, value in keys.items()}
    return Config.with_overrides({"policy.model": str(folder), **named})


def there(folder: Path) -> Path:
    """With weights, of which nobody reads more than that they are there."""
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    return folder


@pytest.mark.parametrize("name", [name for name in REAL if name != "qwen3-moe"])
def test_sizes_tell_nearly_all_weights_and_never_more(name: str) -> None:
    config, parameters, _ = REAL[name]
    assert 0.999 * parameters < by_sizes(config) <= parameters


def test_of_an_unknown_family_sizes_tell_nothing() -> None:
    assert by_sizes(QWEN3_MOE) == by_sizes({}) == by_sizes({"model_type": "llama"}) == 0


@pytest.mark.parametrize("model", ["tiny", "tiny-wide", "tiny-working"])
def test_files_tell_all_weights(model: str) -> None:
    folder = shipped_folder(model)
    assert in_files(folder) == least_weights(folder) == shape_of(folder, model).parameters


def test_files_are_counted_shard_by_shard_without_what_no_text_needs(tmp_path: Path) -> None:
    save_file({"model.a": torch.zeros(3, 5)}, tmp_path / "model-00001-of-00002.safetensors")
    parts = {"model.b": torch.zeros(7), "vision_tower.c": torch.zeros(100)}
    save_file(parts, tmp_path / "model-00002-of-00002.safetensors")
    assert in_files(tmp_path) == 22


@pytest.mark.parametrize(
    "damage", [b"", b"\xff" * 16, b"\x02\0\0\0\0\0\0\0[]", b'\x09\0\0\0\0\0\0\0{"a": 1 }']
)
def test_a_damaged_file_counts_as_nothing(damage: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(damage)
    assert in_files(tmp_path) == 0


@pytest.mark.parametrize("lora", [0, 16])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("optimizer", ["adamw", "adamw8bit"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_least_is_never_above_the_estimate(
    lora: int, dtype: str, optimizer: str, mode: str, tmp_path: Path, sixteen: None
) -> None:
    keys = {"policy__lora_rank": lora, "policy__dtype": dtype, "learner__optimizer": optimizer}
    config = config_of(written(tmp_path, QWEN_HALF), **keys, schedule__mode=mode)
    told = estimate(shape_of(tmp_path, "half"), config, device="cpu", prompt=1)
    assert 0 < least(config, least_weights(tmp_path)).memory < told.peak("memory")


def test_what_cannot_fit_is_refused_with_keys_that_make_it_fit(
    tmp_path: Path, sixteen: None
) -> None:
    folder = there(written(tmp_path / "model", LLAMA_3B))
    with pytest.raises(ConfigError, match=r"policy\.model: .*3\.21 billion.*Set policy\.") as told:
        check_start(config_of(folder), RunFolder(tmp_path / "run"))
    assert "policy.lora_rank = 16" in told.value.remedy
    check_memory(config_of(folder, policy__dtype="bfloat16", policy__lora_rank=16))


def test_where_nothing_helps_a_smaller_model_is_named(
    tmp_path: Path, sixteen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "main_memory", lambda: (GIB, GIB))
    config = config_of(written(tmp_path, LLAMA_3B))
    assert "smaller model" in help_for(config)


def test_what_fits_only_into_what_others_use_is_a_warning(tmp_path: Path, sixteen: None) -> None:
    half = written(tmp_path, QWEN_HALF | {"num_hidden_layers": 36})
    assert check_memory(config_of(half)).tight
    assert check_model_memory(config_of(half)).level == "warn"
    assert check_model_memory(Config()).level == "ok"
    large = written(tmp_path / "large", LLAMA_3B)
    assert check_model_memory(config_of(large)).level == "fail"


def test_a_start_that_is_tight_is_logged_and_goes_on(
    tmp_path: Path, sixteen: None, caplog: pytest.LogCaptureFixture
) -> None:
    half = there(written(tmp_path / "model", QWEN_HALF | {"num_hidden_layers": 36}))
    check_start(config_of(half), RunFolder(tmp_path / "run"))
    warnings = [each for each in caplog.records if each.levelno == logging.WARNING]
    (line,) = [each.getMessage() for each in warnings]
    assert "of which less is free now" in line


def test_a_gpu_is_asked_for_what_is_on_it(
    tmp_path: Path, sixteen: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = config_of(written(tmp_path, QWEN_HALF), policy__dtype="bfloat16")
    weights = least_weights(tmp_path)
    on_cpu = least(half, weights)
    assert (on_cpu.device, on_cpu.there[1]) == (0, 0)
    monkeypatch.setattr(module, "gpu_memory", lambda _: 4 * GIB)
    on_gpu = least(half, weights)
    assert on_gpu.device == on_cpu.memory
    assert on_gpu.memory == 0
    assert not on_gpu.fits
    assert "learner.offload = true" in help_for(half) or "adamw8bit" in help_for(half)


def test_what_cannot_be_counted_is_let_through(tmp_path: Path, sixteen: None) -> None:
    folder = written(tmp_path, {"model_type": "own-family"})
    assert json.loads((folder / "config.json").read_text())
    assert check_memory(config_of(folder)).weights == 0


def test_join_says_so_before_torch_is_loaded(tmp_path: Path) -> None:
    there(written(tmp_path / "model", LLAMA_3B | {"num_hidden_layers": 1_000_000}))
    watch = (
        "import atexit, sys; atexit.register(lambda: print('torch' in sys.modules));"
        "from node.cli.main import run; run()"
    )
    ended = subprocess.run(
        [sys.executable, "-c", watch, "join", "--set", f"policy.model={tmp_path / 'model'}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert ended.returncode == 2
    assert "of main memory with these settings, and this machine has" in ended.stderr
    assert "smaller model" in ended.stderr
    assert ended.stdout.splitlines()[-1] == "False"
