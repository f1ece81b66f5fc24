"""Checks before a start, without heavy imports so that they fail in two seconds."""

from __future__ import annotations

import json
import logging
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from node.config.config import Config, write_config
from node.config.registry import CORRECTIONS, ENGINES, LOGGERS
from node.distributed.torchrun import Launch
from node.errors import ConfigError, NodeError
from node.network.transports import check_transport
from node.plan.machine import emulated
from node.plan.model_shape import check_memory, check_space
from node.policy.device import gpus, torch_build
from node.policy.model_files import check_begun
from node.policy.model_source import check_model
from node.storage.atomic_files import write_new
from node.storage.checkpoints import STATE, Checkpoints
from node.storage.run_folder import RunFolder
from protocol.identity import Identity
from swarm.common.util import counted
from swarm.transport.node import check_ports

log = logging.getLogger(__name__)


def check_start(config: Config, folder: RunFolder) -> None:
    """Check what a training node needs.

    Raises ConfigError if a key asks for what this machine lacks or the run did not start with, or
    if the model cannot fit. Raises NodeError if the model is not found, a port is taken, or the
    first checkpoint exceeds the free disk.
    """
    check_places(config, folder)
    check_device(config.policy.device)
    ENGINES.load(config.engine.backend)().check()
    for name in config.monitor.loggers:
        if package := LOGGERS.load(name).package:
            check_package("monitor.loggers", name, package, name)
    if config.policy.lora_rank:
        check_package("policy.lora_rank", config.policy.lora_rank, "peft", "lora")
    if config.learner.optimizer == "adamw8bit":
        check_package("learner.optimizer", "adamw8bit", "bitsandbytes", "adamw8bit")
    checkpoints = Checkpoints(folder.checkpoints)
    for step in checkpoints.steps()[-1:]:
        with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
            check_begun(config.policy, json.loads((checkpoints.path(step) / STATE).read_bytes()))
    check_model(config.policy.model)
    if Launch.read() is None:  # several ranks divide the memory that one may lack
        memory = check_memory(config)
        if memory.tight:
            log.warning("%s: %s, but less is free now", config.policy.model, memory.words())
        check_space(folder, memory.checkpoint)


def cautions(config: Config) -> tuple[str, ...]:
    """Return warnings about settings that work but are not recommended."""
    warnings = []
    uses_peers = config.mixture.external > 0 and config.network.pulls_per_epoch > 0
    name = config.mixture.correction
    if uses_peers and (caution := CORRECTIONS.load(name).caution):
        warnings.append(f"mixture.correction: {name!r}: {caution}")
    on_cpu = config.policy.device == "cpu" or (
        config.policy.device == "auto" and not gpus() and not torch_build().get("hip")
    )
    if on_cpu and (warning := emulated(config.policy.dtype)):
        warnings.append(f"policy.dtype: {warning}")
    return tuple(warnings)


def check_places(config: Config, folder: RunFolder) -> None:
    """Check transport, folder, files and ports; raise NodeError or ConfigError."""
    check_transport(config.network)
    folder.create()
    for name, path in config.tasks.files.items():
        if not Path(path).is_file():
            remedy = f"There is no such file: write one, or remove {name!r}."
            raise ConfigError(f"tasks.files.{name}", path, remedy)
    for name, paths in config.sandbox.read.items():
        for path in paths:
            if not Path(path).exists():
                remedy = f"There is no such file or folder: create it, or remove it from {name!r}."
                raise ConfigError(f"sandbox.read.{name}", path, remedy)
    if folder.holder() is not None:
        return  # that node holds the ports, and locking the folder reports it
    check_ports(config.network.listen)


def check_package(key: str, value: object, package: str, extra: str) -> None:
    """Raise ConfigError if a package of one of the extras is not installed."""
    if find_spec(package) is None:
        remedy = f"{package} is missing: run pip install '.[{extra}]' in the clone, or change it."
        raise ConfigError(key, value, remedy)


def check_device(device: str) -> None:
    """Raise ConfigError if a device does not exist or torch is built without it."""
    kind, _, number = device.partition(":")
    build = torch_build()
    if kind == "mps" and (sys.platform != "darwin" or platform.machine() != "arm64"):
        raise ConfigError("policy.device", device, "Only Macs have it: set it to 'auto' or 'cpu'.")
    if kind != "cuda" or build.get("hip"):
        return
    if not build.get("cuda", True):
        remedy = f"torch {build['__version__']} is built without CUDA: install a build with it, or "
        raise ConfigError("policy.device", device, f"{remedy}set it to 'auto' or 'cpu'.")
    count = gpus()
    if int(number or 0) >= count:
        text = counted(count, "GPU")
        remedy = f"The driver finds {text} here: set it to 'auto' or 'cpu', or install one."
        raise ConfigError("policy.device", device, remedy)


def prepare(
    directory: Path, overrides: Mapping[str, Any] | None = None, *, full: bool = False
) -> tuple[RunFolder, Identity]:
    """Write a config into ``directory``, with all keys if ``full``; keep or create the identity.

    The seed follows from the key. Raises NodeError (config exists, not writable) or ConfigError.
    """
    Config.with_overrides(overrides or {})
    folder = RunFolder(directory).create()
    if folder.config.exists():
        remedy = "Edit it, or choose another folder."
        raise NodeError("there is already a config", folder.config, remedy)
    identity, _ = open_identity(folder)
    # Only the key's holder knows this seed, so peers cannot predict choices.
    digest = sha256(identity.sign(b"swarm-node/1/node-seed", b"")).digest()
    keys = {"node.seed": int.from_bytes(digest[:8], "big") >> 1, **(overrides or {})}
    write_config(folder.config, Config.with_overrides(keys), keys, full=full)
    return folder, identity


def open_identity(folder: RunFolder) -> tuple[Identity, bool]:
    """Open or create the folder's identity; return whether it was created.

    Raises KeyFileError if it is unusable, and NodeError if it is gone but its journal is not.
    """
    if folder.identity.exists():
        return Identity.load(folder.identity), False
    if folder.journal.exists():
        problem = "the identity is missing, but the journal of its node exists"
        remedy = "Put the key back, or start a new node in another folder."
        raise NodeError(problem, folder.identity, remedy)
    folder.create()
    return Identity.create(folder.identity), True


def import_identity(folder: RunFolder, identity: Identity) -> bool:
    """Make ``identity`` the folder's own; return whether it had to be written.

    Raises KeyFileError if the key is unusable, NodeError if it is another or not writable.
    """
    if folder.identity.exists():
        existing = Identity.load(folder.identity)
        if existing.author == identity.author:
            return False
        raise NodeError(
            f"there is already another key, that of {existing.peer_id}, in",
            folder.identity,
            f"Put the key of {identity.peer_id} into a folder without one, or back up the other "
            "key (swarm-node identity export) and move it away first.",
        )
    write_new(folder.create().identity, identity.export())
    return True
