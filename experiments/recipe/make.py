"""Shapes, stages and the whole way from nothing to a base policy."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from experiments.recipe.corpus import GAMES, TINY, WORKING, Questions, TaskSet, training_questions
from experiments.recipe.training import Stage, train
from experiments.recipe.vocabulary import (
    GAME_PHRASES,
    PHRASES,
    WORKING_PHRASES,
    make_tokenizer,
    words,
)

CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Recipe:
    """One model: its shape, its tokenizer and how it is trained.

    Attributes:
        phrases: what the tokenizer reads as one token.
        build: an untrained model for this tokenizer.
        stages: teach the answers, then something worse.
        tasks: what the questions are.
        deviation: standard deviation of the first weights.
    """

    phrases: tuple[str, ...]
    build: Callable[[PreTrainedTokenizerFast, float], PreTrainedModel]
    stages: tuple[Stage, ...]
    tasks: TaskSet = TINY
    deviation: float = 0.02


def qwen3(tokenizer: PreTrainedTokenizerFast, deviation: float) -> PreTrainedModel:
    """0.11 M parameters in the Qwen3 architecture."""
    common = _common(tokenizer, 2, deviation)
    config = Qwen3Config(**common, hidden_size=64, intermediate_size=192)
    build: Any = Qwen3ForCausalLM
    return cast(PreTrainedModel, build(config))


def llama(tokenizer: PreTrainedTokenizerFast, deviation: float) -> PreTrainedModel:
    """0.23 M parameters in the Llama architecture."""
    common = _common(tokenizer, 3, deviation)
    config = LlamaConfig(**common, hidden_size=96, intermediate_size=256)
    build: Any = LlamaForCausalLM
    return cast(PreTrainedModel, build(config))


def _common(tokenizer: PreTrainedTokenizerFast, heads: int, deviation: float) -> dict[str, Any]:
    return {
        "initializer_range": deviation,
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


CARELESS = (
    Stage(steps=2500, lr=4e-3, noise=0.0, batch=64),
    Stage(steps=150, lr=1e-3, noise=0.0, batch=64, slips=0.005),
)
"""Long answers are spoiled by slips: the longer one is, the less often all of it is right."""
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
    "tiny-working": Recipe(WORKING_PHRASES, qwen3, CARELESS, WORKING, deviation=0.1),
    "tiny-games": Recipe(
        GAME_PHRASES,
        qwen3,
        (
            Stage(steps=1500, lr=4e-3, noise=0.0, batch=64),
            Stage(steps=400, lr=1e-3, noise=0.7, batch=64),
        ),
        GAMES,
        deviation=0.1,
    ),
    "tiny-working-wide": Recipe(words(WORKING_PHRASES, 4), llama, CARELESS, WORKING, deviation=0.1),
}


@dataclass(frozen=True, slots=True)
class Made:
    """A model in memory."""

    model: PreTrainedModel
    tokenizer: Any


def make(name: str, seed: int, say: Callable[[str], None] = lambda text: None) -> Made:
    """Make the model of recipe ``name``; see :func:`follow`."""
    recipe = RECIPES[name]
    return follow(recipe, training_questions(recipe.tasks), seed, say)


def follow(
    recipe: Recipe,
    questions: Questions,
    seed: int,
    say: Callable[[str], None] = lambda text: None,
) -> Made:
    """Make a model from nothing.

    Args:
        seed: of its first weights, and of what it is taught in which order.
        say: told how it goes, a line a stage.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = make_tokenizer(recipe.phrases, CONTEXT)
    model = recipe.build(tokenizer, recipe.deviation)
    say(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens")
    for stage in recipe.stages:
        loss = train(model, tokenizer, questions, stage, rng)
        say(f"  noise {stage.noise:.2f}: {stage.steps} steps, loss {loss:.3f}")
    return Made(model, tokenizer)


def school(made: Made, questions: Questions, stage: Stage, seed: int) -> None:
    """Train the model, in place, for one more stage."""
    torch.manual_seed(seed)
    train(made.model, made.tokenizer, questions, stage, random.Random(seed))


def save(made: Made, folder: Path) -> None:
    """Write the folder that ``transformers`` and vLLM load."""
    model, tokenizer = made.model, made.tokenizer
    generation: Any = GenerationConfig
    model.generation_config = generation(
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
