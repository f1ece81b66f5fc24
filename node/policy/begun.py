"""What a run was begun with, and has to go on with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.config.learning import PolicySection
from node.errors import ConfigError


def check_begun(config: PolicySection, begun: Mapping[str, Any]) -> None:
    """Hold a configuration against the state of a checkpoint.

    Raises:
        ConfigError: the run was begun with another model, type of weights or adapter.
    """
    _check_same("policy.model", config.model, begun["model"])
    _check_same("policy.dtype", config.dtype, begun["dtype"])
    _check_same("policy.lora_rank", config.lora_rank, begun.get("lora_rank", 0))
    if config.lora_rank:
        _check_same("policy.lora_alpha", config.lora_alpha, begun["lora_alpha"])
        _check_same("policy.lora_targets", list(config.lora_targets), begun["lora_targets"])


def _check_same(key: str, now: Any, begun: Any) -> None:
    """A model's folder may have moved; its name stays."""
    moved = isinstance(now, str) and Path(now).is_absolute() and Path(now).name == Path(begun).name
    if now != begun and not moved:
        raise ConfigError(
            key,
            now,
            f"The checkpoints here go back to {begun!r}: set it to that, or begin anew in another "
            "folder with node.run_dir.",
        )
