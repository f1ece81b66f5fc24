"""Speeds of a plan measured on this machine: the real engine and learner on random weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from node.concurrency.cpu_threads import choose, fastest
from node.plan.speed import Speed

if TYPE_CHECKING:
    from node.engines.engine import Sample
    from node.learner.batches import TrainingGroup
    from node.plan.plan import Plan
    from node.policy.policy import Policy

FIRST_TOKENS, MOST_TOKENS = 4, 128
"""Of each answer in a first, short try, and in the one that is measured."""
SECONDS = 15.0
"""That the answers of the second take, about, if they take as long a token as the first."""
PROMPT = 16
SEED = 0


def probe(found: Plan, tell: Callable[[str], None]) -> Speed:
    """Let a group be written and learned from, in short answers, and scale the times up.

    The embedded engine writes, whichever the plan is for; vLLM is faster. Weights are drawn by
    chance, as speed does not depend on them.

    Args:
        tell: told what is measured now.

    Raises:
        NodeError: memory runs out.
    """
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine
    from node.learner.learner import Learner

    config, random = found.choice.config, Random(SEED)
    tell(f"building {found.model} with random weights")
    policy = random_policy(found)
    if policy.device.type == "cpu":
        threads = choose(config.node.threads)
        if not config.node.threads:
            fastest(policy.probe, threads)
    engine = TransformersEngine(policy, seed=SEED)
    prompt = [random.randrange(policy.tokenizer.vocab_size) for _ in range(PROMPT)]
    size = config.engine.group_size
    prompts = [prompt] * max(1, min(found.work.rows, found.work.written) // size)

    def written(tokens: int) -> tuple[list[list[Sample]], float]:
        begin = time.perf_counter()
        groups = engine.generate(prompts, size, Sampling(max_new_tokens=tokens, seed=SEED))
        return groups, time.perf_counter() - begin

    tell("writing answers")
    room = min(MOST_TOKENS, found.shape.context - PROMPT)
    _, seconds = written(min(FIRST_TOKENS, room))
    tokens = max(1, min(room, int(SECONDS * FIRST_TOKENS / seconds)))
    groups, seconds = written(tokens)
    write = sum(len(each.tokens.ids) for group in groups for each in group) / seconds
    tell("learning from them")
    learner = Learner(policy, config.learner)
    seconds = _update_seconds(learner.update, _training_group(prompt, groups[0]))
    read = (PROMPT + sum(len(each.tokens.ids) for each in groups[0])) / seconds
    return Speed.of(write, read, found.work, "measured")


def random_policy(found: Plan) -> Policy:
    """The planned model with weights drawn by chance, behind the shipped tokenizer.

    It ends no answer, so that all are as long as was asked for.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from node.policy.device import device_named
    from node.policy.model_source import shipped_folder
    from node.policy.policy import Policy, adapter_of

    config = found.choice.config.policy
    dtype = getattr(torch, config.dtype)
    loader: Any = AutoModelForCausalLM
    model = loader.from_config(AutoConfig.from_pretrained(found.folder), dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(shipped_folder("tiny"))
    adapter = adapter_of(model, config) if config.lora_rank else None
    policy = Policy(model.to(device_named(config.device)), tokenizer, found.model, adapter)
    policy.stop_ids = (-1,)
    return policy


def _update_seconds(update: Callable[[list[TrainingGroup]], object], group: TrainingGroup) -> float:
    begin = time.perf_counter()
    update([group])
    return time.perf_counter() - begin


def _training_group(prompt: list[int], samples: list[Sample]) -> TrainingGroup:
    """What was written, every second answer right."""
    from node.learner.batches import TrainingCompletion, TrainingGroup

    return TrainingGroup(
        tuple(prompt),
        tuple(TrainingCompletion.own(sample.tokens) for sample in samples),
        tuple(float(number % 2) for number in range(len(samples))),
        own=True,
    )
