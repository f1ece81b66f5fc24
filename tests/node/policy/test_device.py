"""Which device a policy is put on, and what is known of it before torch is imported."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from node.policy import device as device_module
from node.policy.device import device_named, draws_on, give_back, wait_for
from node.policy.model_files import PolicyError


def test_auto_takes_a_gpu_of_cuda_and_no_other(monkeypatch):
    for has, kind in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has=has: has)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        assert device_named("auto").type == kind


def test_a_device_that_is_not_there_is_refused_by_its_key():
    with pytest.raises(PolicyError, match=r"policy\.device.*'cuda:99'"):
        device_named("cuda:99")


def test_numbers_are_drawn_where_there_are_some_of_64_bits():
    """Tokens are drawn in float64, which a Mac's GPU refuses."""
    drawn = {kind: draws_on(torch.device(kind)).type for kind in ("cpu", "cuda", "mps")}
    assert drawn == {"cpu": "cpu", "cuda": "cuda", "mps": "cpu"}


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps"])
def test_memory_is_given_back_and_work_waited_for_on_the_device_that_has_them(kind, monkeypatch):
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
    """NVIDIA's, of two GPUs of 8 GiB."""

    names: ClassVar[list[str]] = []

    def __init__(self, name: str) -> None:
        self.names.append(name)

    def __getattr__(self, name: str) -> Callable[..., int]:
        return {"cuDeviceGetCount": self.count, "cuDeviceTotalMem_v2": self.memory}.get(
            name, lambda *_: 0
        )

    def count(self, count: Any) -> int:
        ctypes.cast(count, ctypes.POINTER(ctypes.c_int)).contents.value = 2
        return 0

    def memory(self, size: Any, handle: Any) -> int:
        ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t)).contents.value = 8 << 30
        return 0


@pytest.mark.parametrize(
    ("system", "library"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")]
)
def test_the_driver_is_looked_for_by_the_name_that_it_has_there(monkeypatch, system, library):
    monkeypatch.setattr(Driver, "names", [])
    monkeypatch.setattr(device_module.sys, "platform", system)
    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    assert device_module.gpus() == 2 and Driver.names == [library]


def test_the_torch_that_is_installed_is_read_and_not_imported():
    told = device_module.torch_build()
    assert (told["__version__"], told["cuda"]) == (torch.__version__, torch.version.cuda)


@pytest.mark.parametrize(
    ("device", "built", "bytes_there"),
    [("auto", "13.0", 8 << 30), ("cuda:0", "13.0", 8 << 30), ("auto", None, 0), ("cpu", "13.0", 0)],
)
def test_a_gpu_counts_where_torch_can_use_it(monkeypatch, device, built, bytes_there):
    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    monkeypatch.setattr(device_module, "torch_build", lambda: {"cuda": built})
    assert device_module.gpu_memory(device) == bytes_there
