"""How many tokens a policy may read at once."""

from __future__ import annotations

import logging
from typing import Any

from transformers import PreTrainedConfig

log = logging.getLogger(__name__)

UNBOUNDED = 1 << 20


def context_length(config: PreTrainedConfig, name: str) -> int:
    """Tokens of prompt and completion together that a model reads alike in every pass.

    Beyond their original length models with longrope rotate every token otherwise (Ding et al.,
    arXiv 2402.13753): what a token's log-prob is then depends on how long the text becomes behind
    it, and what was sampled is not what is trained on. They are used up to that length.
    """
    text: Any = config.get_text_config()
    whole = int(getattr(text, "max_position_embeddings", UNBOUNDED))
    rotations = getattr(text, "rope_parameters", None) or {}
    kinds = [rotations, *(each for each in rotations.values() if isinstance(each, dict))]
    longrope = [each for each in kinds if each.get("rope_type") == "longrope"]
    original = min([whole, *(int(each["original_max_position_embeddings"]) for each in longrope)])
    if original < whole:
        log.warning(
            "%s: the context of %d tokens is cut to %d, its original one: longrope rotates every "
            "token otherwise beyond it",
            name,
            whole,
            original,
        )
    return original
