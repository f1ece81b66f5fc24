"""What is known of GPUs before torch is imported."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from node.policy import device as device_module


@pytest.mark.parametrize(
    ("system", "library"), [("linux", "libcuda.so.1"), ("win32", "nvcuda.dll")]
)
def test_the_driver_is_looked_for_by_the_name_that_it_has_there(
    monkeypatch: pytest.MonkeyPatch, system: str, library: str
) -> None:
    asked: list[str] = []

    class Driver:
        def __init__(self, name: str) -> None:
            asked.append(name)

        def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's own name
            return 0

        def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
            ctypes.cast(count, ctypes.POINTER(ctypes.c_int)).contents.value = 2
            return 0

    monkeypatch.setattr(device_module.sys, "platform", system)
    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    assert device_module.gpus() == 2
    assert asked == [library]


def test_the_torch_that_is_installed_is_read_and_not_imported() -> None:
    import torch

    assert device_module.torch_build()["__version__"] == torch.__version__
    assert device_module.torch_build()["cuda"] == torch.version.cuda


@pytest.mark.parametrize(
    ("device", "built", "bytes_there"),
    [("auto", "13.0", 8 << 30), ("cuda:0", "13.0", 8 << 30), ("auto", None, 0), ("cpu", "13.0", 0)],
)
def test_a_gpu_counts_where_torch_can_use_it(
    monkeypatch: pytest.MonkeyPatch, device: str, built: str | None, bytes_there: int
) -> None:
    class Driver:
        def __init__(self, name: str) -> None:
            pass

        def cuInit(self, flags: int) -> int:  # noqa: N802 - the driver's own name
            return 0

        def cuDeviceGet(self, handle: Any, number: int) -> int:  # noqa: N802
            return 0

        def cuDeviceTotalMem_v2(self, size: Any, handle: Any) -> int:  # noqa: N802
            ctypes.cast(size, ctypes.POINTER(ctypes.c_size_t)).contents.value = 8 << 30
            return 0

    monkeypatch.setattr(device_module.ctypes, "CDLL", Driver)
    monkeypatch.setattr(device_module, "torch_build", lambda: {"cuda": built})
    assert device_module.gpu_memory(device) == bytes_there
