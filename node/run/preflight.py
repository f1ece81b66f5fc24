"""What the config and this machine tell of a start before anything is loaded or dialled.

Nothing heavy is imported here: what cannot work is to be said within two seconds.
"""

from __future__ import annotations

import json
import logging
import platform
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from node.config.config import Config, write_config
from node.config.learning import PolicySection
from node.config.registry import CORRECTIONS, ENGINES, LOGGERS
from node.distributed.torchrun import Launch
from node.errors import ConfigError, NodeError
from node.network.transports import check_transport, why_not_free
from node.plan.model_shape import check_memory
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
    """Look for what a node needs that trains here.

    Raises:
        ConfigError: a key asks for what this machine has not, or what the run was not begun with;
            or the model cannot fit.
        NodeError: the model is not to be found, or a port is taken.
    """
    check_places(config, folder)
    check_device(config.policy.device)
    ENGINES.load(config.engine.kind)().check()
    for name in config.monitor.loggers:
        if package := LOGGERS.load(name).package:
            check_package("monitor.loggers", name, package, name)
    if config.policy.lora_rank:
        check_package("policy.lora_rank", config.policy.lora_rank, "peft", "lora")
    if config.learner.optimizer == "adamw8bit":
        check_package("learner.optimizer", "adamw8bit", "bitsandbytes", "adamw8bit")
    _check_begun(config.policy, folder)
    check_model(config.policy.model)
    if Launch.read() is None:  # several ranks divide what one machine may not have
        found = check_memory(config)
        if found.tight:
            log.warning("%s: %s, of which less is free now", config.policy.model, found.words())


def cautions(config: Config) -> tuple[str, ...]:
    """What a node is told that may do as the config asks, and had better not."""
    takes = config.mixture.external > 0 and config.network.pulls_per_epoch > 0
    name = config.mixture.correction
    caution = CORRECTIONS.load(name).caution
    return (f"mixture.correction: {name!r}: {caution}",) if takes and caution else ()


def check_places(config: Config, folder: RunFolder) -> None:
    """Look for what every node needs: its transport, a folder to write to, and its ports.

    Raises:
        NodeError: the folder cannot be written to, or the port of the metrics is taken.
        PortTaken: another port is.
        ConfigError: the transport, or a file that is named, is not there.
    """
    check_transport(config.network)
    folder.create()
    for name, path in config.tasks.files.items():
        if not Path(path).is_file():
            remedy = f"There is no such file: write one, or take {name!r} out."
            raise ConfigError(f"tasks.files.{name}", path, remedy)
    for name, paths in config.tasks.read.items():
        for path in paths:
            if not Path(path).exists():
                remedy = f"There is no such file or folder: make it, or take it out of {name!r}."
                raise ConfigError(f"tasks.read.{name}", path, remedy)
    if folder.holder() is not None:
        return  # its ports are that node's, and who locks the folder says so
    check_ports(config.network.listen)
    port = config.monitor.prometheus_port
    if port and (why := why_not_free(f"/ip4/127.0.0.1/tcp/{port}")):
        remedy = "Stop what holds it, or choose another port; 0 is none."
        raise NodeError(f"monitor.prometheus_port cannot be used ({why})", port, remedy)


def check_package(key: str, value: object, package: str, extra: str) -> None:
    """Look for a package that one of the extras brings.

    Raises:
        ConfigError: it is not installed.
    """
    if find_spec(package) is None:
        raise ConfigError(
            key,
            value,
            f"{package} is not installed: run pip install 'swarm-node[{extra}]', or change it.",
        )


def check_device(device: str) -> None:
    """Look for a device, as ``policy.device`` names it, without torch.

    Raises:
        ConfigError: there is none, or torch is built without it.
    """
    kind, _, number = device.partition(":")
    built = torch_build()
    if kind == "mps" and (sys.platform != "darwin" or platform.machine() != "arm64"):
        raise ConfigError("policy.device", device, "Only Macs have it: set it to 'auto' or 'cpu'.")
    if kind != "cuda" or built.get("hip"):
        return
    if not built.get("cuda", True):
        remedy = f"torch {built['__version__']} is built without CUDA: install a build with it, or "
        raise ConfigError("policy.device", device, f"{remedy}set it to 'auto' or 'cpu'.")
    count = gpus()
    if int(number or 0) >= count:
        shown = counted(count, "GPU")
        remedy = f"The driver shows {shown} here: set it to 'auto' or 'cpu', or install one."
        raise ConfigError("policy.device", device, remedy)


def _check_begun(config: PolicySection, folder: RunFolder) -> None:
    """Against the newest checkpoint; one that is damaged is found out about when it is loaded."""
    checkpoints = Checkpoints(folder.checkpoints)
    for step in checkpoints.steps()[-1:]:
        try:
            begun = json.loads((checkpoints.path(step) / STATE).read_bytes())
            check_begun(config, begun)
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return


def prepare(
    directory: Path, overrides: Mapping[str, Any] | None = None
) -> tuple[RunFolder, Identity]:
    """Write a config and an identity into ``directory``; an identity that is there is kept.

    The seed in the config follows from the identity, so that no two nodes choose alike.

    Args:
        overrides: config keys that differ from their defaults.

    Raises:
        NodeError: there is a config already, or the folder cannot be written to.
        ConfigError: an override is wrong.
    """
    Config.with_overrides(overrides or {})
    folder = RunFolder(directory).create()
    if folder.config.exists():
        raise NodeError(
            "there is a config already", folder.config, "Edit it, or choose another folder."
        )
    identity, _ = open_identity(folder)
    own = {"node.seed": _seed_of(identity)}
    write_config(folder.config, Config.with_overrides({**own, **(overrides or {})}))
    return folder, identity


def _seed_of(identity: Identity) -> int:
    """A seed that only the holder of the key can tell, so that peers cannot foresee choices."""
    digest = sha256(identity.sign(b"swarm-node/1/node-seed", b"")).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def open_identity(folder: RunFolder) -> tuple[Identity, bool]:
    """The folder's identity, and whether it had to be made.

    Raises:
        KeyFileError: the file cannot be used.
        NodeError: the key is gone while a journal written under it remains.
    """
    if folder.identity.exists():
        return Identity.load(folder.identity), False
    if folder.journal.exists():
        raise NodeError(
            "the identity is gone and the journal of its node is still here",
            folder.identity,
            "Put the key back, or begin anew in another folder.",
        )
    folder.create()
    return Identity.create(folder.identity), True


def import_identity(folder: RunFolder, identity: Identity) -> bool:
    """Make ``identity`` the folder's own, and say whether it had to be written.

    Raises:
        KeyFileError: the key that is there cannot be used.
        NodeError: another key is there, or the folder cannot be written to.
    """
    if folder.identity.exists():
        held = Identity.load(folder.identity)
        if held.author == identity.author:
            return False
        raise NodeError(
            f"there is another key already, that of {held.peer_id}, in",
            folder.identity,
            f"Put that of {identity.peer_id} into a folder without one, or keep a copy of the "
            "other (swarm-node identity export) and move it away first.",
        )
    write_new(folder.create().identity, identity.export())
    return True
