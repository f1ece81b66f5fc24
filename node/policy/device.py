"""The device that a policy is on."""

from __future__ import annotations

import torch

from node.policy.model_files import PolicyError


def device_named(name: str) -> torch.device:
    """The device that ``policy.device`` names.

    ``auto`` is a GPU that CUDA knows, or the CPU: a Mac's GPU is taken where it is named.

    Raises:
        PolicyError: there is no such device.
    """
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
    return torch.device("cpu") if device.type == "mps" else device


def wait_for(device: torch.device) -> None:
    """Return once the device has done all that it was told to."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def give_back(device: torch.device) -> None:
    """Give back the memory that no tensor needs, for other processes on the same device."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
