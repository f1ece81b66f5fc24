"""The policy's device, and what the CUDA driver reports; torch loads when needed."""

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
    """Return the device that ``policy.device`` names, or raise PolicyError.

    ``auto`` is a CUDA GPU or else the CPU; a Mac's GPU must be named.
    """
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        value = f"{name!r} ({str(error).splitlines()[0]})"
        raise PolicyError("policy.device", value, "Set it to 'auto' or 'cpu'.") from error


def disable_cudnn_attention(device: torch.device) -> None:
    """Disable cuDNN's attention, torch's first choice on an H100, for a CUDA ``device``.

    It makes and keeps a plan for each new shape, which takes longer than the attention itself. The
    rows of an update and the length of a growing cache seldom have the same shape twice.
    """
    import torch

    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


def draws_on(device: torch.device) -> torch.device:
    """Return where random numbers are drawn: a Mac's GPU has no 64-bit numbers."""
    import torch

    return torch.device("cpu") if device.type == "mps" else device


def wait_for(device: torch.device) -> None:
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def give_back(device: torch.device) -> None:
    """Release cached memory for other processes on the same device."""
    import torch

    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


LIBRARY, LIBRARY_ON_WINDOWS = "libcuda.so.1", "nvcuda.dll"


def torch_build() -> dict[str, object]:
    """Return the variables of torch's ``version.py``, without importing torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise NodeError("torch is not installed", None, "Install it with: pip install .")
    path = Path(spec.origin).with_name("version.py")
    return runpy.run_path(str(path)) if path.exists() else {}


def gpus() -> int:
    """Return the number of GPUs that the driver shows to this process."""
    count = ctypes.c_int(0)
    driver = _driver()
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def gpu_memory(device: str) -> int:
    """Return bytes of the selected GPU; 0 if none, or ``auto`` and torch without CUDA.

    With torch for AMD's GPUs, which NVIDIA's driver does not know, this imports it.
    """
    kind, _, index = device.partition(":")
    number, build = int(index or 0), torch_build()
    if kind not in ("auto", "cuda"):
        return 0
    if build.get("hip"):
        import torch

        exists = number < torch.cuda.device_count()
        return torch.cuda.get_device_properties(number).total_memory if exists else 0
    handle, size = ctypes.c_int(0), ctypes.c_size_t(0)
    driver = _driver() if build.get("cuda", True) else None
    if driver is None or driver.cuDeviceGet(ctypes.byref(handle), number):
        return 0
    error_code = driver.cuDeviceTotalMem_v2(ctypes.byref(size), handle)
    return 0 if error_code else size.value


def _driver() -> Any:
    try:
        driver = ctypes.CDLL(LIBRARY_ON_WINDOWS if sys.platform == "win32" else LIBRARY)
    except OSError:
        return None
    return None if driver.cuInit(0) else driver
