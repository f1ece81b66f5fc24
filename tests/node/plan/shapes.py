"""Configurations of real models, as their makers publish them, and machines to plan for."""

from __future__ import annotations

import json
from pathlib import Path

from node.plan.machine import GIB, Device, Machine

QWEN_HALF = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN_1_5 = QWEN_HALF | {
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
}
LLAMA_3B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
}
QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
QWEN3_MOE = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "max_position_embeddings": 40960,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
}
REAL = {
    "qwen-half": (QWEN_HALF, 494_032_768, 494_032_768),
    "qwen-1.5": (QWEN_1_5, 1_543_714_304, 1_543_714_304),
    "llama-3b": (LLAMA_3B, 3_212_749_824, 3_212_749_824),
    "qwen3-8b": (QWEN3_8B, 8_190_735_360, 8_190_735_360),
    "qwen3-moe": (QWEN3_MOE, 30_532_122_624, 3_353_032_704),
}
"""By a name for it: configuration, parameters and active ones, as its makers count them."""


def written(folder: Path, config: dict[str, object]) -> Path:
    """A folder with nothing but this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def laptop(memory: float = 16, disk: float = 500) -> Machine:
    """A CPU with so many GiB, all of them free."""
    size = round(memory * GIB)
    flops = {"float32": 2e11, "bfloat16": 3e11}
    device = Device("cpu", "the CPU", size, size, 2e10, flops)
    return Machine(4, size, size, round(disk * GIB), device)


def with_gpu(gpu: float, memory: float = 64) -> Machine:
    """The same with a GPU of so many GiB."""
    from dataclasses import replace

    size = round(gpu * GIB)
    device = Device("cuda", "a GPU", size, size, 1e12, {"float32": 4e13, "bfloat16": 1.6e14})
    return replace(laptop(memory), device=device)
