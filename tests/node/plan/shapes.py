"""Published configurations of real models, and machines to plan for."""

import json
from dataclasses import replace
from pathlib import Path

from node.plan.machine import GIB, Device, Machine

SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
SIZES += ("num_key_value_heads", "max_position_embeddings", "vocab_size")

UNTIED = {"tie_word_embeddings": False, "head_dim": 128}
EXPERTS = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}


def config(family: str, kind: str, *sizes: int, **more: int) -> dict[str, object]:
    """Return a configuration; ``sizes`` are in the order of ``SIZES``."""
    names = {"architectures": [f"{family}ForCausalLM"], "model_type": kind}
    return names | dict(zip(SIZES, sizes, strict=True)) | {"tie_word_embeddings": True} | more


QWEN_HALF = config("Qwen2", "qwen2", 896, 4864, 24, 14, 2, 32768, 151936)
QWEN_1_5 = config("Qwen2", "qwen2", 1536, 8960, 28, 12, 2, 32768, 151936)
LLAMA_3B = config("Llama", "llama", 3072, 8192, 28, 24, 8, 131072, 128256, head_dim=128)
QWEN3_8B = config("Qwen3", "qwen3", 4096, 12288, 36, 32, 8, 40960, 151936, **UNTIED)
MOE = UNTIED | EXPERTS
QWEN3_MOE = config("Qwen3Moe", "qwen3_moe", 2048, 6144, 48, 32, 4, 40960, 151936, **MOE)
REAL = {
    "qwen-half": (QWEN_HALF, 494_032_768, 494_032_768),
    "qwen-1.5": (QWEN_1_5, 1_543_714_304, 1_543_714_304),
    "llama-3b": (LLAMA_3B, 3_212_749_824, 3_212_749_824),
    "qwen3-8b": (QWEN3_8B, 8_190_735_360, 8_190_735_360),
    "qwen3-moe": (QWEN3_MOE, 30_532_122_624, 3_353_032_704),
}
"""By name: configuration, parameters and active parameters, as published."""


def written(folder: Path, config: dict[str, object]) -> Path:
    """Write a folder that contains only this configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def laptop(memory: float = 16, disk: float = 500) -> Machine:
    """Return a machine with a CPU and ``memory`` GiB, all of them usable."""
    size = round(memory * GIB)
    flops = {"float32": 2e11, "bfloat16": 3e11}
    device = Device("cpu", "the CPU", size, size, 2e10, flops)
    return Machine(4, size, size, round(disk * GIB), device)


def with_gpu(gpu: float, memory: float = 64) -> Machine:
    """Return a laptop with a GPU of ``gpu`` GiB."""
    size = round(gpu * GIB)
    device = Device("cuda", "a GPU", size, size, 1e12, {"float32": 4e13, "bfloat16": 1.6e14})
    return replace(laptop(memory), device=device)
