"""Policies that never stop by themselves, so that every completion has the length asked for."""

from __future__ import annotations

from pathlib import Path

from node.config.learning import PolicySection
from node.policy.policy import Policy


def endless_policy(model: str | Path, *, tokens: int = 0, dtype: str = "float32") -> Policy:
    """Load a policy onto the CPU; its context has room for ``tokens``."""
    policy = Policy.load(PolicySection(model=str(model), dtype=dtype, device="cpu"))
    policy.stop_ids = ()
    generation = policy.model.generation_config
    generation.eos_token_id, generation.pad_token_id = None, policy.pad_id
    policy.context_length = max(policy.context_length, tokens)
    policy.model.config.max_position_embeddings = policy.context_length
    return policy
