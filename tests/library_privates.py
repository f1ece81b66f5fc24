"""What tests need of libraries that keep it to themselves; no other file of theirs reaches in."""

from __future__ import annotations

from typing import Any

from torch.utils._pytree import TreeSpec, tree_flatten
from transformers import PreTrainedModel


def attend_by(model: PreTrainedModel, kind: str) -> None:
    """Have a model say that it attends by ``kind``, also where that is not installed."""
    model.config._attn_implementation = kind


def flattened(tree: Any) -> tuple[list[Any], TreeSpec]:
    """The leaves of nested containers in order, and how these were nested."""
    return tree_flatten(tree)
