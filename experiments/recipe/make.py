"""Recipes of the tiny models: training stages, model shapes, and measured success.

A model first learns right answers and is then trained on noise. The result is a policy with a
latent skill: it seldom answers right, but reinforcement learning recovers the skill within a few
hundred updates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from experiments.recipe.corpus import (
    GAMES,
    TINY,
    WORKING,
    Game,
    Parts,
    Question,
    Questions,
    TaskSet,
    training_questions,
)
from experiments.recipe.local_verifier import LocalVerifier
from experiments.recipe.tokenizer import (
    GAME_PHRASES,
    PHRASES,
    WORKING_PHRASES,
    make_tokenizer,
    words,
)
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from node.tasks.task import Task, TaskSource
from node.trajectories.player import Player
from node.trajectories.trajectory import TurnLimits
from swarm.groups import Split

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of training."""

    steps: int  # optimizer steps
    lr: float  # peak learning rate, decayed to zero by a cosine
    noise: float  # fraction of answers that are replaced by random strings
    batch: int = 256  # questions per step
    slips: float = 0.0  # probability of each digit and letter of the other answers to be replaced


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    questions: Questions,
    stage: Stage,
    rng: random.Random,
) -> float:
    """Run one stage in place; return the loss of its last step, nats per token.

    A stage without noise omits untaught questions, which have no other answer.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * step / stage.steps)
    )
    levels = [asked for asked in questions.values() if stage.noise or asked[0].taught]
    model.train(True)
    for _ in range(stage.steps):
        drawn = [rng.choice(level) for level in rng.choices(levels, k=stage.batch)]
        ids, labels = _batch(tokenizer, drawn, stage, rng)
        logits = model(input_ids=ids).logits[:, :-1].float()
        loss = cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.train(False)
    return loss.item()


def _batch(
    tokenizer: PreTrainedTokenizerFast,
    drawn: Sequence[Question | Game],
    stage: Stage,
    rng: random.Random,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return right-padded ids and labels [B, T]; only turns of the policy are learned."""
    rows = [_row(tokenizer, item.parts(stage.noise, stage.slips, rng)) for item in drawn]
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(drawn), width), tokenizer.pad_token_id)
    labels = torch.full((len(drawn), width), IGNORED)
    for number, (read, learned) in enumerate(rows):
        ids[number, : len(read)] = torch.tensor(read)
        labels[number, : len(read)] = torch.tensor(learned)
    return ids, labels


def _row(tokenizer: PreTrainedTokenizerFast, parts: Parts) -> tuple[list[int], list[int]]:
    ids: list[int] = []
    labels: list[int] = []
    encoded = tokenizer([text for text, _ in parts]).input_ids
    for (_, ours), part in zip(parts, encoded, strict=True):
        own = [*part, tokenizer.eos_token_id] if ours else part
        ids += own
        labels += own if ours else [IGNORED] * len(own)
    return ids, labels


CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Recipe:
    """Shape, tokenizer and training stages of one model."""

    phrases: tuple[str, ...]  # texts that the tokenizer encodes as one token
    build: Callable[[PreTrainedTokenizerFast, float], PreTrainedModel]  # makes an untrained model
    stages: tuple[Stage, ...]  # first the right answers, then noise
    tasks: TaskSet = TINY  # task set of the questions
    deviation: float = 0.02  # standard deviation of the initial weights


def qwen3(tokenizer: PreTrainedTokenizerFast, deviation: float) -> PreTrainedModel:
    """Build a Qwen3 model with 0.11 M parameters."""
    common = _common(tokenizer, 2, deviation)
    config = Qwen3Config(**common, hidden_size=64, intermediate_size=192)
    build: Any = Qwen3ForCausalLM
    return cast(PreTrainedModel, build(config))


def llama(tokenizer: PreTrainedTokenizerFast, deviation: float) -> PreTrainedModel:
    """Build a Llama model with 0.23 M parameters."""
    common = _common(tokenizer, 3, deviation)
    config = LlamaConfig(**common, hidden_size=96, intermediate_size=256)
    build: Any = LlamaForCausalLM
    return cast(PreTrainedModel, build(config))


def _common(tokenizer: PreTrainedTokenizerFast, heads: int, deviation: float) -> dict[str, Any]:
    return {
        "initializer_range": deviation,
        # Matrix kernels need multiples of 8; training makes the unused rows very improbable.
        "vocab_size": (len(tokenizer) + 7) // 8 * 8,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        # The minimum of the attention kernels of inference engines.
        "head_dim": 32,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }


# Long answers get slips instead of noise: longer answers are right less often.
SLIPPING = (
    Stage(steps=2500, lr=4e-3, noise=0.0, batch=64),
    Stage(steps=150, lr=1e-3, noise=0.0, batch=64, slips=0.005),
)
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
    "tiny-working": Recipe(WORKING_PHRASES, qwen3, SLIPPING, WORKING, deviation=0.1),
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
    "tiny-working-wide": Recipe(words(WORKING_PHRASES, 4), llama, SLIPPING, WORKING, deviation=0.1),
}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model in memory."""

    model: PreTrainedModel
    tokenizer: Any


def make(name: str, seed: int, say: Callable[[str], None] = lambda text: None) -> TrainedModel:
    recipe = RECIPES[name]
    return make_from_scratch(recipe, training_questions(recipe.tasks), seed, say)


def make_from_scratch(
    recipe: Recipe, questions: Questions, seed: int, say: Callable[[str], None] = lambda text: None
) -> TrainedModel:
    """Train a model from random weights.

    Args:
        seed: seed of the weights and of the training data.
        say: receives a line of progress per stage.
    """
    torch.manual_seed(seed)
    rng = random.Random(seed)
    tokenizer = make_tokenizer(recipe.phrases, CONTEXT)
    model = recipe.build(tokenizer, recipe.deviation)
    say(f"{model.num_parameters()} parameters, {len(tokenizer)} tokens")
    for stage in recipe.stages:
        loss = train(model, tokenizer, questions, stage, rng)
        say(f"  noise {stage.noise:.2f}: {stage.steps} steps, loss {loss:.3f}")
    return TrainedModel(model, tokenizer)


def fine_tune(made: TrainedModel, questions: Questions, stage: Stage, seed: int) -> None:
    """Train the model in place for one more stage."""
    torch.manual_seed(seed)
    train(made.model, made.tokenizer, questions, stage, random.Random(seed))


def save(made: TrainedModel, folder: Path) -> None:
    """Write a folder that ``transformers`` and vLLM load."""
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
    # ``save_pretrained`` writes private files; those of a package must be readable by all.
    (folder / "model.safetensors").chmod(0o644)
    tokenizer.save_pretrained(folder)


GROUP = 8
TURN_TOKENS = 8
FIRST_SEED = 1 << 32


@dataclass(frozen=True, slots=True)
class Success:
    """Mean over the families; the levels of a family have equal weight."""

    rate: float  # fraction of right completions
    informative: float  # fraction of informative groups: their rewards differ
    by_level: dict[tuple[str, int], float]  # fraction of right completions by family and level


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    count: int,
    tasks: TaskSet = TINY,
) -> Success:
    """Sample groups of eight at temperature 1 on ``count`` tasks of every level."""
    rates: dict[tuple[str, int], float] = {}
    informative: dict[tuple[str, int], float] = {}
    for env, source in tasks.open().items():
        for level in range(source.levels):
            drawn = [source.build(level, FIRST_SEED + i, split) for i in range(count)]
            if source.environment:
                rewards = _played(model, tokenizer, tasks, drawn)
            else:
                rewards = _right(model, tokenizer, source, drawn, tasks.longest)
            rates[env, level] = rewards.mean().item()
            differ = rewards.amax(dim=1) > rewards.amin(dim=1)
            informative[env, level] = differ.float().mean().item()
    return Success(_over_families(rates), _over_families(informative), rates)


def _played(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, tasks: TaskSet, drawn: list[Task]
) -> torch.Tensor:
    """Return rewards [tasks, GROUP] of sampled trajectories."""
    policy, verifier = Policy(model, tokenizer, "measured"), LocalVerifier(tasks.specs())
    limits = TurnLimits(turn_tokens=TURN_TOKENS, tokens=tasks.longest)
    player = Player(policy, TransformersEngine(policy, seed=0), verifier, limits)
    prompts = [policy.encode_prompt(task.prompt) for task in drawn]
    sampling = Sampling(max_new_tokens=tasks.longest)
    groups = player.play([task.ref for task in drawn], prompts, GROUP, sampling)
    return torch.tensor([[each.reward or 0.0 for each in group] for group in groups])


@torch.no_grad()
def _right(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    source: TaskSource,
    tasks: list[Task],
    longest: int,
) -> torch.Tensor:
    """Return rewards [tasks, GROUP] of sampled completions."""
    prompts = tokenizer(
        [task.prompt for task in tasks], return_tensors="pt", padding=True, padding_side="left"
    )
    generate: Any = model.generate
    ids = generate(
        **prompts,
        do_sample=True,
        temperature=1.0,
        top_k=0,
        num_return_sequences=GROUP,
        max_new_tokens=longest,
    )
    texts = tokenizer.batch_decode(ids[:, prompts.input_ids.shape[1] :], skip_special_tokens=True)
    rewards = [source.score(tasks[row // GROUP], text) for row, text in enumerate(texts)]
    return torch.tensor(rewards).view(len(tasks), GROUP)


def _over_families(values: dict[tuple[str, int], float]) -> float:
    families: dict[str, list[float]] = {}
    for (env, _), value in values.items():
        families.setdefault(env, []).append(value)
    return sum(sum(v) / len(v) for v in families.values()) / len(families)
