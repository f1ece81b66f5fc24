"""Makes the two tiny models of node/models: ``python examples/tiny_model/make.py``.

The README beside this file says what they are and how the recipe works.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from corpus import training_questions
from measure import measure
from training import Stage, train
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from vocabulary import PHRASES, make_tokenizer, words

from node.tasks.task import Split

MODELS = Path(__file__).resolve().parents[2] / "node" / "models"
SEED = 2
CONTEXT = 512
MEASURED_TASKS = 64


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: its shape, its tokenizer and how it is trained.

    Attributes:
        phrases: what the tokenizer reads as one token.
        build: an untrained model for this tokenizer.
        stages: teach the answers; learn to guess half of the time; guess nearly always.
    """

    phrases: tuple[str, ...]
    build: Callable[[PreTrainedTokenizerFast], PreTrainedModel]
    stages: tuple[Stage, ...]


def qwen3(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """0.11 M parameters in the Qwen3 architecture."""
    config = Qwen3Config(**_common(tokenizer, 2), hidden_size=64, intermediate_size=192)
    return Qwen3ForCausalLM(config)


def llama(tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """0.23 M parameters in the Llama architecture."""
    config = LlamaConfig(**_common(tokenizer, 3), hidden_size=96, intermediate_size=256)
    return LlamaForCausalLM(config)


def _common(tokenizer: PreTrainedTokenizerFast, heads: int) -> dict[str, Any]:
    return {
        # Matrix kernels like multiples of 8; training makes the spare rows as good as impossible.
        "vocab_size": (len(tokenizer) + 7) // 8 * 8,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        # Attention kernels of inference engines start at 32.
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }


RECIPES = {
    "tiny": Recipe(
        PHRASES,
        qwen3,
        (
            Stage(steps=1200, lr=4e-3, noise=0.0),
            Stage(steps=250, lr=1e-3, noise=0.5),
            Stage(steps=100, lr=5e-4, noise=0.82),
        ),
    ),
    "tiny-wide": Recipe(
        words(PHRASES, 4),
        llama,
        (
            Stage(steps=900, lr=4e-3, noise=0.0),
            Stage(steps=250, lr=1e-3, noise=0.5),
            Stage(steps=100, lr=5e-4, noise=0.84),
        ),
    ),
}


def make(name: str, folder: Path) -> None:
    """Make one model into ``folder``, saying how it goes."""
    recipe = RECIPES[name]
    torch.manual_seed(SEED)
    rng = random.Random(SEED)
    tokenizer = make_tokenizer(recipe.phrases, CONTEXT)
    model = recipe.build(tokenizer)
    print(f"{name}: {model.num_parameters()} parameters, {len(tokenizer)} tokens", flush=True)
    training = training_questions()
    for stage in recipe.stages:
        started = time.perf_counter()
        loss = train(model, tokenizer, training, stage, rng)
        seconds = time.perf_counter() - started
        print(f"  noise {stage.noise:.2f}: {stage.steps} steps, loss {loss:.3f}, {seconds:.0f} s")
    save(model, tokenizer, folder)
    for split in Split:
        success = measure(model, tokenizer, split, MEASURED_TASKS)
        print(f"  {split.value}: {success.rate:.1%} right, {success.informative:.0%} informative")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the folder that ``transformers`` and vLLM load."""
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model.save_pretrained(folder)
    # The weights are written through a private temporary file; packages must be readable by all.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(RECIPES), help="make this one alone")
    parser.add_argument("--out", type=Path, default=MODELS, help="folder of the models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in [options.only] if options.only else RECIPES:
        make(name, options.out / name)


if __name__ == "__main__":
    main()
