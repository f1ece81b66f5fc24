"""The device that a policy is on, and what CUDA's driver says; torch is imported when needed."""

from __future__ import annotations

import ctypes
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.errors import NodeError
from node.policy.model_files import PolicyError

if TYPE_CHECKING:
    import torch


def device_named(name: str) -> torch.device:
    """The device that ``policy.device`` names.

    ``auto`` is a GPU that CUDA knows, or the CPU: a Mac's GPU is taken where it is named.

    Raises:
        PolicyError: there is no such device.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        raise PolicyError(
            "policy.device",
            f"{name!r} ({str(error).splitlines()[0]})",
            "Set it to 'auto' or 'cpu'.",
        ) from error


def draws_on(device: torch.device) -> torch.device:
    """Where numbers are drawn for a policy on ``device``: there, but on the CPU for a Mac's GPU,
    which has no numbers of 64 bits."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def wait_for(device: torch.device) -> None:
    """Return once the device has done all that it was told to."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def give_back(device: torch.device) -> None:
    """Give back the memory that no tensor needs, for other processes on the same device."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


LIBRARY, LIBRARY_ON_WINDOWS = "libcuda.so.1", "nvcuda.dll"


def torch_build() -> dict[str, object]:
    """What torch says of itself, read and not imported."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise NodeError("torch is not installed", None, "Install it with: pip install .")
    path = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(path)) if path.exists() else {}


def gpus() -> int:
    """GPUs that the driver shows to this process."""
    count = ctypes.c_int(0)
    driver = _driver()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def gpu_memory(device: str) -> int:
    """Bytes of the GPU that ``policy.device`` comes to; 0 where it comes to none, as ``auto`` does
    with a torch that is built without CUDA."""
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cuda") or not torch_build().get("cuda", True):
        return 0
    handle, size = ctypes.c_int(0), ctypes.c_size_t(0)
    driver = _driver()
    if driver is None or driver.cuDeviceGet(ctypes.byref(handle), int(number or 0)):
        return 0
    failed = driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    return 0 if failed else size.value


def _driver() -> Any:
    """The driver, ready to be asked; None where there is none."""
    try:
        driver = ctypes.CDLL(LIBRARY_ON_WINDOWS if sys.platform == "win32" else LIBRARY)
    except OSError:
        return None
    return None if driver.cuInit(0) else driver
