"""How often a policy answers right, sampled at temperature 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from experiments.recipe.corpus import TINY, TaskSet
from experiments.recipe.local_judge import LocalJudge
from node.engines.engine import Sampling
from node.engines.transformers.engine import TransformersEngine
from node.policy.policy import Policy
from node.tasks.task import Task, TaskSource, extract
from node.trajectories.player import Player
from node.trajectories.trajectory import TurnLimits
from swarm.groups import Split

GROUP = 8
TURN_TOKENS = 8
FIRST_SEED = 1 << 32


@dataclass(frozen=True, slots=True)
class Success:
    """Mean over the families, each level of a family counting alike.

    Attributes:
        rate: share of right completions.
        informative: share of groups with both right and wrong completions, the only ones that
            group-relative advantages learn from.
        by_level: share of right completions by family and level.
    """

    rate: float
    informative: float
    by_level: dict[tuple[str, int], float]


def measure(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    split: Split,
    count: int,
    tasks: TaskSet = TINY,
) -> Success:
    """Sample groups of eight on ``count`` tasks of every level."""
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
    """Rewards [tasks, GROUP] of sampled trajectories."""
    policy, judge = Policy(model, tokenizer, "measured"), LocalJudge(tasks.specs())
    limits = TurnLimits(turn_tokens=TURN_TOKENS, tokens=tasks.longest)
    player = Player(policy, TransformersEngine(policy, seed=0), judge, limits)
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
    """Rewards [tasks, GROUP] of sampled completions."""
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
    rewards = [
        source.score(tasks[row // GROUP], extract(text, "text")) for row, text in enumerate(texts)
    ]
    return torch.tensor(rewards).view(len(tasks), GROUP)


def _over_families(values: dict[tuple[str, int], float]) -> float:
    families: dict[str, list[float]] = {}
    for (env, _), value in values.items():
        families.setdefault(env, []).append(value)
    return sum(sum(v) / len(v) for v in families.values()) / len(families)
