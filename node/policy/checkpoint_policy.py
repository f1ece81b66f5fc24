"""The policy of a checkpoint, for evaluation, export and questions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from node.config.config import Config
from node.config.learning import PolicySection
from node.errors import NodeError, UsageError
from node.policy.model_files import check_begun
from node.policy.policy import Policy
from node.storage.atomic_files import filling, make_folder
from node.storage.checkpoints import (
    Checkpoints,
    Loaded,
    best_of,
    list_checkpoints,
    named,
    no_checkpoint,
)
from node.storage.run_folder import RunFolder
from swarm.common.util import Say

log = logging.getLogger(__name__)


@contextmanager
def chosen(folder: RunFolder, *, step: str | None = None, best: bool = False) -> Iterator[Loaded]:
    """Yield the newest intact checkpoint, the named one, or that of best held-out reward.

    A node in that folder deletes no checkpoint meanwhile. Raises NodeError: there is none;
    UsageError: none of that name or none evaluated; CheckpointError: it is damaged.
    """
    checkpoints = Checkpoints(folder.checkpoints)
    with checkpoints.reading():
        if step is not None:
            yield named(list_checkpoints(checkpoints), step, "--step").load()
        elif best:
            yield best_of(list_checkpoints(checkpoints), folder).load()
        elif checkpoint := checkpoints.load_latest():
            yield checkpoint
        else:
            raise no_checkpoint(checkpoints.folder)


def saved_policy(config: PolicySection, loaded: Loaded, tell: Say = log.info) -> Policy:
    """Load a checkpoint's policy; an adapter goes into the run's initial model.

    Raises PolicyError: loading failed; ConfigError: another model, weight type or adapter.
    """
    check_begun(config, loaded.state)
    if config.lora_rank:
        policy = Policy.load(config, loaded.path, tell)
    else:
        policy = Policy.load(config.model_copy(update={"model": str(loaded.path)}))
        policy.name = config.model
    policy.version = int(loaded.state["policy_step"])
    return policy


def checkpoint_policy(config: PolicySection, loaded: Loaded, tell: Say = log.info) -> Policy:
    """Load a checkpoint's own model, or its adapter into the configured model.

    Raises PolicyError: loading failed; ConfigError: the adapter has other settings.
    """
    if "lora_rank" in loaded.state:
        return saved_policy(config, loaded, tell)
    return Policy.load(
        PolicySection(
            model=str(loaded.path),
            dtype=config.dtype,
            device=config.device,
            chat_template_kwargs=config.chat_template_kwargs,
        )
    )


def export(
    config: Config, loaded: Loaded, out: Path, *, adapter: bool = False, tell: Say = log.info
) -> None:
    """Write a checkpoint's model (or only its adapter) and tokenizer to ``out``.

    Raises NodeError: ``out`` is not an empty folder, or cannot be made; UsageError: there is no
    adapter; PolicyError: the checkpoint cannot be loaded; DiskFullError: nothing is left there.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise NodeError("the path already exists", out, "Name a new folder with --out.")
    if adapter and not loaded.state.get("lora_rank"):
        raise UsageError("--adapter", loaded.path, "The run has no adapter: omit the option.")
    make_folder(out, "--out")
    policy = checkpoint_policy(config.policy.model_copy(update={"device": "cpu"}), loaded, tell)
    with filling(out):
        (policy.save_adapter if adapter else policy.save)(out)
