"""Small random models of every causal architecture that ``transformers`` knows."""

import dataclasses
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedConfig

from node.policy.policy import Policy
from tests.support import policy_of

VOCABULARY = 98
WINDOW = 12
"""Tokens; shorter than the prompts and completions of the tests."""
CONTEXT = 128

SIZES: dict[str, Any] = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), VOCABULARY),
    "bos_token_id": None,
    "decoder_start_token_id": 0,
    "eos_token_id": 97,
    "pad_token_id": 96,
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "emb_dim", "embedding_size"), 64),
    **dict.fromkeys(("input_embedding_size", "output_embedding_size"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "ffn_hidden_size", "d_inner", "dff"), 96),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "dim_ff", "feed_forward_size"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_decoder_layers", "num_encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_decoder_attention_heads", "num_encoder_attention_heads"), 4),
    **dict.fromkeys(("attention_heads", "swa_num_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2),
    **dict.fromkeys(("head_dim", "swa_head_dim", "kv_channels", "dim_head"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"), CONTEXT),
    **dict.fromkeys(("max_target_positions", "context_length"), CONTEXT),
    **dict.fromkeys(("sliding_window", "sliding_window_size", "local_attention"), WINDOW),
    **dict.fromkeys(("attention_window_size", "attention_chunk_size", "keep_window_size"), WINDOW),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    "moe_num_experts": 4,
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk"), 2),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("expert_ffn_hidden_size", "shared_intermediate_size"), 32),
    **dict.fromkeys(("dense_intermediate_size", "intermediate_size_mlp"), 96),
    "moe_shared_expert_intermediate_size": 32,
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace", "decoder_sparse_step"), 1),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 32),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 16),
    "index_head_dim": 32,
    "index_n_heads": 4,
    **dict.fromkeys(("rotary_dim", "query_pre_attn_scalar"), 16),
    **dict.fromkeys(("state_size", "ssm_state_size", "mamba_d_state"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 1),
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "linear_head_dim"), 16),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), 16),
    **dict.fromkeys(("hidden_size_per_layer_input", "laurel_rank"), 16),
    **dict.fromkeys(("initializer_range", "init_std", "init_method_std"), 0.15),
    **dict.fromkeys(("attention_dropout", "hidden_dropout", "resid_pdrop", "embd_pdrop"), 0.0),
}
"""Values of configuration fields, for families that have the field."""

_TWICE = {"num_hidden_layers": 4}
_OFFSET = {"max_position_embeddings": 256, "pad_token_id": 1}
"""Positions start after the padding token."""
_LATENT = {"num_key_value_heads": 4}
"""Every head has its own keys and values, computed from a shared latent."""
OWN: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32"), _LATENT),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "kimi_linear", "longcat_flash"), _LATENT),
    **dict.fromkeys(("minicpm3", "youtu"), _LATENT),
    **dict.fromkeys(
        ("camembert", "data2vec-text", "roberta", "roberta-prelayernorm", "xlm-roberta", "xmod"),
        _OFFSET,
    ),
    "xlm-roberta-xl": _OFFSET,
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, **_TWICE},
    "bamba": {"attn_layer_indices": [1, 3], **_TWICE},
    "cwm": {"bos_token_id": 0},
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 0,
        "activation_sparsity_pattern": [0.0] * 4,
        **_TWICE,
    },
    "gpt_neo": {"attention_types": [[["global", "local"], 2]], "num_layers": 4, "window_size": 12},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2, **_TWICE},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, **_TWICE},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1, **_TWICE},
    "llama4_text": {"no_rope_layers": [1, 0, 1, 0], **_TWICE},
    "mamba2": {"num_heads": 8},
    "modernbert-decoder": {"bos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0},
    "nemotron_h": {
        "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"] * 2,
        "num_hidden_layers": 8,
    },
    "recurrent_gemma": {"num_hidden_layers": 6},
    "reformer": {
        "is_decoder": True,
        "attn_layers": ["local", "lsh"] * 2,
        "axial_pos_shape": [8, 16],
        "axial_pos_embds_dim": [32, 32],
        "local_attn_chunk_length": 16,
        "lsh_attn_chunk_length": 16,
    },
    "roc_bert": {"pronunciation_embed_dim": 16, "shape_embed_dim": 16},
    "smollm3": {"no_rope_layers": [1, 0]},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, **_TWICE},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"] * 2, **_TWICE},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""Settings in addition to :data:`SIZES`, to build a family with all its layer types."""

SEEING = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "llama4": "llama4_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Multimodal families, and the family that processes their text."""
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
"""Sizes of the part that processes images."""

MOST_WEIGHTS = 6_000_000


class TooLargeError(Exception):
    """The configuration of a family cannot be made small."""


def small_config(family: str, **changes: Any) -> PreTrainedConfig:
    """Return a configuration with tiny widths and two layers of each layer type."""
    kind = CONFIG_MAPPING[family]
    if family in SEEING:
        text = small_config(SEEING[family]).to_dict()
        return kind(text_config=text, vision_config=dict(VISION))
    known = {field.name for field in dataclasses.fields(kind)}
    named = known - kind.attribute_map.keys()
    sizes: dict[str, Any] = {name: value for name, value in SIZES.items() if name in named}
    own = OWN.get(family, {})
    if "is_decoder" in known:
        sizes["is_decoder"] = True
    if "layer_types" in known and "num_hidden_layers" not in own:
        kinds = list(dict.fromkeys(kind().layer_types or ()))
        if len(kinds) > 1:
            sizes |= {"layer_types": kinds * 2, "num_hidden_layers": 2 * len(kinds)}
    return kind(**{**sizes, **own, **changes})


def small_policy(family: str, seed: int = 1) -> Policy:
    """Return a random float32 policy of a family, which never stops by itself."""
    config = small_config(family)
    with torch.device("meta"):
        weights = AutoModelForCausalLM.from_config(config).num_parameters()
    if weights > MOST_WEIGHTS:
        raise TooLargeError(f"{family}: {weights} weights")
    return policy_of(config, family, seed)
