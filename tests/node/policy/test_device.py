import ast
import ctypes
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from node.policy import device as device_module
from node.policy.device import device_named, disable_cudnn_attention, draws_on, give_back, wait_for
from node.policy.model_files import PolicyError
from tests.node.programs import ROOT
from tests.parsing import parse


def test_auto_selects_only_cuda_and_missing_gpus_are_rejected(monkeypatch):
    with pytest.raises(PolicyError, match=r"policy\.device.*'cuda:99'"):
        device_named("cuda:99")
    for has, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=has: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert device_named("auto").type == kind


def test_cudnn_attention_is_disabled_only_for_cuda_devices():
    before = torch.backends.cuda.cudnn_sdp_enabled()
    try:
        torch.backends.cuda.enable_cudnn_sdp(True)
        disable_cudnn_attention(torch.device("cpu"))
        assert torch.backends.cuda.cudnn_sdp_enabled()
        disable_cudnn_attention(torch.device("cuda", 1))
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def test_sampling_uses_a_device_with_float64():
    """Tokens are sampled in float64, which Apple GPUs do not support."""
    devices = {kind: draws_on(torch.device(kind)).type for kind in ("cpu", "cuda", "mps")}
    assert devices == {"cpu": "cpu", "cuda": "cuda", "mps": "cpu"}


def test_every_device_generator_uses_draws_on():
    calls = {
        f"{path.name}: {ast.unparse(call)}"
        for path in sorted((ROOT / "node").rglob("*.py"))
        for call in ast.walk(parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "torch.Generator" and call.args
    }
    assert calls
    assert [each for each in calls if "Generator(draws_on(" not in each] == []


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_cache_release_and_synchronization_use_the_given_device(kind, monkeypatch):
    emptied, waited = [], []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append("cuda"))
    monkeypatch.setattr(torch.mps, "empty_cache", lambda: emptied.append("mps"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: waited.append(device.type))
    monkeypatch.setattr(torch.mps, "synchronize", lambda: waited.append("mps"))
    give_back(torch.device(kind))
    assert (emptied, waited) == ([kind] * (kind != "cpu"), [])
    wait_for(torch.device(kind))
    assert waited == [kind] * (kind != "cpu")


class Driver:
    """An NVIDIA driver with two GPUs of 8 GiB."""

    names: ClassVar[list[str]] = []

    def __init__(self, name):
        self.names.append(name)

    def __getattr__(self, name):
        values = {"cuDeviceGetCount": 2, "cuDeviceTotalMem_v2": 8 << 30}

        def call(*arguments):
            if name in values:
                kind = ctypes.c_int if "Count" in name else ctypes.c_size_t
                ctypes.cast(arguments[0], ctypes.POINTER(kind)).contents.value = values[name]
            return 0

        return call


@pytest.mark.parametrize(("system", "name"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")])
def test_gpu_count_loads_the_driver_of_the_platform(monkeypatch, system, name):
    monkeypatch.setattr(Driver, "names", [])
    monkeypatch.setattr(device_module.sys, "platform", system)
    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    assert device_module.gpus() == 2 and Driver.names == [name]


@pytest.mark.parametrize(
    ("device", "built", "bytes_there"),
    [("auto", "13.0", 8 << 30), ("cuda:0", "13.0", 8 << 30), ("auto", None, 0), ("cpu", "13.0", 0)],
)
def test_gpu_memory_counts_only_usable_gpus(monkeypatch, device, built, bytes_there):
    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    monkeypatch.setattr(device_module, "torch_build", lambda: {"cuda": built})
    assert device_module.gpu_memory(device) == bytes_there


@pytest.mark.parametrize(
    ("device", "bytes_there"), [("auto", 8 << 30), ("cuda:1", 16 << 30), ("cuda:2", 0), ("cpu", 0)]
)
def test_amd_gpu_memory_counts_without_cuda_support(monkeypatch, device, bytes_there):
    sizes = [SimpleNamespace(total_memory=size << 30) for size in (8, 16)]
    monkeypatch.setattr(device_module, "torch_build", lambda: {"cuda": None, "hip": "7.2"})
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(sizes))
    monkeypatch.setattr(torch.cuda, "get_device_properties", sizes.__getitem__)
    assert device_module.gpu_memory(device) == bytes_there
