"""Snapshot of a policy for an engine's process: configuration, tokenizer, weights.

The weights are one safetensors file in shared memory. It is replaced atomically, so a reader finds
either the old or the new weights, complete and with their version.
"""

from __future__ import annotations

import copy
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from node.errors import NodeError
from node.policy.device import give_back
from node.policy.policy import Policy
from node.storage.atomic_files import lock, try_lock, write_error
from swarm.common.util import replace

log = logging.getLogger(__name__)

WEIGHTS = "weights.safetensors"
LOCK = "lock"
SHARED_MEMORY = Path("/dev/shm")
PREFIX = "swarm-node-engine-"
ROOM = 3  # required free space in copies of the weights: two while renaming, plus a margin
YOUNG_SECONDS = 60.0


class SnapshotError(NodeError):
    """The weights in a snapshot cannot be used."""


class Snapshot:
    """The folder of one engine, written when created, locked while its owner lives.

    A new snapshot removes folders that dead owners left behind. ``as_checkpoint`` names and splits
    the weights as in a checkpoint. The parent folder ``place`` is by default shared memory if that
    has room, else the system's folder for temporary files. Raises NodeError: it cannot be written.
    """

    def __init__(self, policy: Policy, *, as_checkpoint: bool, place: Path | None = None) -> None:
        place = place or _place(policy.model)
        _sweep(place)
        self._as_checkpoint = as_checkpoint
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
        self._lock = _open_lock(self.folder, os.O_CREAT)
        lock(self._lock)
        config = copy.deepcopy(policy.model.config)
        config.architectures = [type(policy.model).__name__]
        config.dtype = policy.model.dtype
        config.save_pretrained(self.folder)
        policy.tokenizer.save_pretrained(self.folder)
        self.write(policy)

    def write(self, policy: Policy) -> None:
        """Replace the weights; a NodeError leaves the earlier ones untouched."""
        path, draft = self.folder / WEIGHTS, self.folder / f"{WEIGHTS}.draft"
        try:
            metadata = {"format": "pt", "version": str(policy.version)}
            save_file(self._tensors(policy.merged().model), draft, metadata)
            replace(draft, path)
        except (OSError, SafetensorError) as error:
            draft.unlink(missing_ok=True)
            cause = error if isinstance(error, OSError) else OSError(str(error))
            raise write_error(path, cause) from error
        if policy.adapter is not None:
            give_back(policy.device)  # the merged copy's memory, which the engine may need

    def remove(self) -> None:
        os.close(self._lock)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _tensors(self, model: PreTrainedModel) -> dict[str, Tensor]:
        state = model.state_dict()
        if self._as_checkpoint:
            state = revert_weight_conversion(model, state)
        unique = {(t.data_ptr(), t.shape): name for name, t in reversed(state.items())}
        return {name: state[name].contiguous() for name in unique.values()}


@contextmanager
def opened(folder: Path) -> Iterator[tuple[int, Iterator[tuple[str, Tensor]]]]:
    """Yield the version, and CPU weights by name, or raise SnapshotError."""
    path = folder / WEIGHTS
    with ExitStack() as stack:
        with _reading(path):
            file = stack.enter_context(safe_open(path, framework="pt"))
            version = int(file.metadata()["version"])
        yield version, _weights(file, path)


def _weights(file: Any, path: Path) -> Iterator[tuple[str, Tensor]]:
    for name in file.keys():  # noqa: SIM118 - it is no mapping
        with _reading(path):
            tensor = file.get_tensor(name)
        yield name, tensor


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, reason: object) -> SnapshotError:
    return SnapshotError(
        "the snapshot of the weights is missing or damaged",
        f"{path} ({reason})",
        "Start the node again.",
    )


@torch.no_grad()
def load_into(model: PreTrainedModel, folder: Path) -> int:
    """Copy weights into ``model``; return their version, or raise SnapshotError."""
    state = model.state_dict()
    with opened(folder) as (version, weights):
        pointers = set()
        for name, tensor in weights:
            if name not in state or state[name].shape != tensor.shape:
                raise _damaged(folder / WEIGHTS, f"{name} does not fit the model")
            state[name].copy_(tensor)
            pointers.add(state[name].data_ptr())
        for name, tensor in state.items():
            if tensor.data_ptr() not in pointers:
                raise _damaged(folder / WEIGHTS, f"{name} is missing")
    return version


def _place(model: PreTrainedModel) -> Path:
    needed = ROOM * sum(t.nbytes for t in model.state_dict().values())
    if SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK):
        free = shutil.disk_usage(SHARED_MEMORY).free
        if free >= needed:
            return SHARED_MEMORY
        log.warning(
            "%s has %d MiB free, but the engine's weights need %d: using %s",
            SHARED_MEMORY,
            free >> 20,
            needed >> 20,
            tempfile.gettempdir(),
        )
    return Path(tempfile.gettempdir())


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        try:
            handle = _open_lock(folder)
        except OSError:  # owned by another user, or already removed
            continue
        try:
            # The owner of a younger one may not have locked it yet.
            age = time.time() - os.fstat(handle).st_mtime
            abandoned = try_lock(handle) and age > YOUNG_SECONDS
        finally:
            os.close(handle)
        if abandoned:
            shutil.rmtree(folder, ignore_errors=True)


def _open_lock(folder: Path, create: int = 0) -> int:
    """Open what a folder's owner locks: the folder, or on Windows, which opens none, a file."""
    if sys.platform == "win32":
        return os.open(folder / LOCK, os.O_RDWR | create)
    return os.open(folder, os.O_RDONLY)
