"""A checkpoint's model on its own, without optimizer and random states."""

from __future__ import annotations

from pathlib import Path

from node.checkpoint import Checkpoints, Loaded
from node.config import Config
from node.errors import NodeError
from node.policy import Policy, PolicyConfig
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


def export(config: Config, folder: RunFolder, out: Path) -> Loaded:
    """Write the newest checkpoint's model and tokenizer to the new folder ``out``.

    Raises:
        NodeError: no checkpoint, or ``out`` is there already.
        PolicyError: the checkpoint does not load.
    """
    loaded = newest(folder)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError("there is something already at", out, "Name a new folder with --out.")
    policy = Policy.load(PolicyConfig(str(loaded.path), config.policy.dtype, device="cpu"))
    out.mkdir(parents=True, exist_ok=True)
    policy.save(out)
    return loaded
