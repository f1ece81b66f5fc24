"""How many weights a model has at the least, told without torch: by its files, or by its sizes."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MOST_HEADER = 100_000_000
"""Bytes of a safetensors file's header, as the format allows."""
ASIDE = ("vision", "visual", "audio", "mtp", "rotary_emb")
"""In names of tensors that a causal language model may leave in their file."""
GATED = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose layers are four matrices of attention and three of an MLP, and norms beside."""
SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
    "vocab_size",
)


def least_weights(folder: Path) -> int:
    """Weights of the model in a folder, or fewer; 0 where nothing there tells.

    Shards that are missing, and a configuration of an unknown family, count as nothing.
    """
    return max(in_files(folder), by_sizes(_config(folder)))


def in_files(folder: Path) -> int:
    """Weights in the folder's safetensors files, by their headers
    (https://huggingface.co/docs/safetensors)."""
    return sum(_in_file(path) for path in folder.glob("model*.safetensors"))


def by_sizes(config: Mapping[str, Any]) -> int:
    """Weights of the matrices of a model of a known family; its norms and biases are left out."""
    known = all(isinstance(config.get(name), int) for name in SIZES)
    if config.get("model_type") not in GATED or not known:
        return 0
    hidden, inner, heads, layers, words = (int(config[name]) for name in SIZES)
    size = config.get("head_dim") or hidden // max(1, heads)
    kv_heads = config.get("num_key_value_heads") or heads
    attention = 2 * hidden * size * (heads + kv_heads)
    tables = 1 if config.get("tie_word_embeddings", False) else 2
    return int(tables * words * hidden + layers * (attention + 3 * hidden * inner))


def _in_file(path: Path) -> int:
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length <= MOST_HEADER else {}
        return sum(
            prod(tensor["shape"])
            for name, tensor in header.items()
            if name != "__metadata__" and not any(part in name for part in ASIDE)
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        log.info("%s: its weights are not counted beforehand: %s", path, error)
        return 0


def _config(folder: Path) -> Mapping[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.info("%s: its weights are not counted beforehand: %s", folder, error)
        return {}
    return found if isinstance(found, dict) else {}
