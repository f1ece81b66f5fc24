"""Small random policies of model families whose layers are not all plain attention."""

from __future__ import annotations

from typing import Any

import transformers

from node.policy.policy import Policy
from tests import support
from tests.support import policy_of

SHAPE = {**support.SHAPE, "num_hidden_layers": 4, "head_dim": 16, "initializer_range": 0.15}
SLIDING = {"sliding_window": 12, "layer_types": ["sliding_attention", "full_attention"] * 2}
DELTA = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_n_groups": 1}
MIXED: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma 2": ("Gemma2Config", {"sliding_window": 12}),
    "gemma 3": ("Gemma3TextConfig", SLIDING),
    "gemma 4": ("Gemma4TextConfig", SLIDING),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 4, "sliding_window": 12}),
    "olmo 3": ("Olmo3Config", SLIDING),
    "cohere 2": ("Cohere2Config", SLIDING),
    "exaone 4": ("Exaone4Config", SLIDING),
    "llama 4": (
        "Llama4TextConfig",
        {"num_local_experts": 2, "attention_chunk_size": 16, "no_rope_layers": [1, 1, 1, 0]},
    ),
    "qwen 3 next": ("Qwen3NextConfig", {**DELTA, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen 3.5": ("Qwen3_5TextConfig", DELTA),
    "lfm 2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 2}),
    "granite 4": (
        "GraniteMoeHybridConfig",
        {
            **MAMBA,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
            "shared_intermediate_size": 64,
            "layer_types": ["mamba", "attention"] * 2,
        },
    ),
}
"""Names of configuration classes, and what they take beside :data:`SHAPE`."""


def family_policy(family: str, seed: int = 1) -> Policy:
    """One of a family, never stopping by itself."""
    name, own = MIXED[family]
    return policy_of(getattr(transformers, name)(**SHAPE, **own), family, seed)
