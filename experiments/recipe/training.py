"""Teaches a small decoder the answers, then buries them under noise.

What is left is a policy whose skill is latent: it seldom answers right, but reinforcement learning
brings the skill back within a few hundred updates.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from experiments.recipe.corpus import Parts, Question, Questions
from experiments.recipe.game import Game

IGNORED = -100


@dataclass(frozen=True, slots=True)
class Stage:
    """One stretch of training.

    Attributes:
        steps: optimizer steps.
        lr: peak learning rate, decayed to zero by a cosine.
        noise: share of the answers that are replaced by random strings.
        batch: questions a step.
        slips: chance of every digit and letter of the others to be replaced by a random one.
    """

    steps: int
    lr: float
    noise: float
    batch: int = 256
    slips: float = 0.0


def train(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    questions: Questions,
    stage: Stage,
    rng: random.Random,
) -> float:
    """Run one stage in place; returns the loss of its last step, nats a token.

    A stage without noise leaves out what is not to be taught; there is nothing else to answer it.
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
    """Right-padded ids and labels [B, T]; only the policy's turns and their EOS are learned."""
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
