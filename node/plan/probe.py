"""Speeds of a plan measured on this machine: the real engine and learner on random weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from node.concurrency.threads import choose, fastest
from node.plan.speed import Speed

if TYPE_CHECKING:
    from node.learner.batches import TrainingGroup
    from node.learner.learner import Learner
    from node.plan.plan import Plan
    from node.policy.policy import Policy

FIRST_TOKENS, MOST_TOKENS = 4, 128
"""Of each answer in a first, short try, and in the one that is measured."""
SECONDS = 15.0
"""That the answers of the second take, about, if they take as long a token as the first."""
SHORT, LONG = 8, 64
"""Tokens of the answers that are learned from."""
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
    from node.learner.learner import Learner

    config, random = found.choice.config, Random(SEED)
    tell(f"building {found.model} with random weights")
    policy = random_policy(found)
    if policy.device.type == "cpu":
        threads = choose(config.node.threads)
        if not config.node.threads:
            fastest(policy.probe, threads)
    prompt = [random.randrange(policy.tokenizer.vocab_size) for _ in range(PROMPT)]
    room = min(MOST_TOKENS, found.shape.context - PROMPT)
    tell("writing answers")
    write = _writing(found, policy, prompt, room)
    tell("learning from answers")
    size = config.engine.group_size
    read, step = _learning(Learner(policy, config.learner), prompt, size, room)
    return Speed.of(write, read, found.work, "measured", step)


def _writing(found: Plan, policy: Policy, prompt: list[int], room: int) -> float:
    """Tokens a second of all rows that a round decodes side by side."""
    from node.engines.engine import Sampling
    from node.engines.transformers.engine import TransformersEngine

    engine = TransformersEngine(policy, seed=SEED)
    size = found.choice.config.engine.group_size
    prompts = [prompt] * max(1, min(found.work.rows, found.work.written) // size)

    def rate(tokens: int) -> float:
        begin = time.perf_counter()
        groups = engine.generate(prompts, size, Sampling(max_new_tokens=tokens, seed=SEED))
        count = sum(len(each.tokens.ids) for group in groups for each in group)
        return count / (time.perf_counter() - begin)

    first = rate(min(FIRST_TOKENS, room))
    return rate(max(1, min(room, int(SECONDS * first / (size * len(prompts))))))


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


def _learning(learner: Learner, prompt: list[int], size: int, room: int) -> tuple[float, float]:
    """Tokens a second, and the seconds of a step beside: from updates on short and long answers."""
    lengths = min(SHORT, room), min(LONG, room)
    seconds = []
    for length in (lengths[0], *lengths):  # the first one warms up, and makes the optimizer's state
        group = _training_group(prompt, size, length)
        begin = time.perf_counter()
        learner.update([group])
        seconds.append(time.perf_counter() - begin)
    _, short, long = seconds
    more = size * (lengths[1] - lengths[0])
    if more and long > short:
        read = more / (long - short)
        return read, max(0.0, short - (len(prompt) + size * lengths[0]) / read)
    return (len(prompt) + size * lengths[1]) / long, 0.0


def _training_group(prompt: list[int], size: int, length: int) -> TrainingGroup:
    """Answers of the same token over and over, every second one right."""
    from node.learner.batches import TrainingCompletion, TrainingGroup
    from protocol.rollout import Tokens

    answer = Tokens((prompt[0],) * length, (-1.0,) * length, (0,) * length)
    return TrainingGroup(
        tuple(prompt),
        (TrainingCompletion.own(answer),) * size,
        tuple(float(number % 2) for number in range(size)),
        own=True,
    )
