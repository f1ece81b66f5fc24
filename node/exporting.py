"""A checkpoint's model on its own, without optimizer and random states."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from node.checkpoint import Checkpoints, Loaded
from node.config import Config
from node.errors import NodeError, UsageError
from node.policy import Policy, PolicyConfig
from node.progress import saved_policy
from node.run_folder import RunFolder


def newest(folder: RunFolder) -> Loaded:
    """The newest intact checkpoint.

    Raises:
        NodeError: there is none.
    """
    loaded = Checkpoints(folder.checkpoints).load_latest()
    if loaded is None:
        raise NodeError(
            "no checkpoint yet in",
            folder.checkpoints,
            "Let the node run until schedule.checkpoint_every rounds are done, or stop it.",
        )
    return loaded


def checkpoint_policy(config: PolicyConfig, loaded: Loaded) -> Policy:
    """The policy of a checkpoint: its own model, or its adapter in the model that is configured.

    Raises:
        PolicyError: it does not load.
        ConfigError: an adapter was trained with other settings.
    """
    if "lora_rank" in loaded.state:
        return saved_policy(config, loaded)
    return Policy.load(PolicyConfig(str(loaded.path), config.dtype, config.device))


def export(config: Config, folder: RunFolder, out: Path, *, adapter: bool = False) -> Loaded:
    """Write the newest checkpoint's model and tokenizer to the new folder ``out``.

    Args:
        adapter: write the adapter alone instead of the model that it makes.

    Raises:
        NodeError: no checkpoint, no adapter, or ``out`` is there already.
        PolicyError: the checkpoint does not load.
    """
    loaded = newest(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError("there is something already at", out, "Name a new folder with --out.")
    policy = checkpoint_policy(replace(PolicyConfig(**dict(config.policy)), device="cpu"), loaded)
    if adapter and policy.adapter is None:
        raise UsageError("--adapter", loaded.path, "The run has none: leave the option out.")
    out.mkdir(parents=True, exist_ok=True)
    (policy.save_adapter if adapter else policy.save)(out)
    return loaded
