"""A question for the policy and, if recognized, its task, to score the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.tasks.scorer import Scorer, buildable
from protocol.manifest import QUESTION, EnvSpec
from swarm.groups import Split, TaskRef

BATCH = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt (without chat template) and its task, None if answers cannot be scored."""

    prompt: str
    task: TaskRef | None


def drawn(scorer: Scorer, levels: Sequence[tuple[str, int]], rng: random.Random) -> Question:
    """Sample a held-out question; raises ``JudgeRefused`` if it cannot be built."""
    env, level = rng.choice(levels)
    task = TaskRef(env, level, rng.getrandbits(63), Split.HELDOUT)
    (prompt,) = scorer.prompts([task])
    return Question(prompt, task)


def recognised(
    scorer: Scorer,
    specs: Sequence[EnvSpec],
    levels: Sequence[tuple[str, int]],
    text: str,
    rng: random.Random,
    most: int,
) -> Question:
    """Find ``text`` among at most ``most`` sampled tasks; raises ``JudgeRefused``.

    Task families only sample questions, so only families with few distinct ones are recognized
    reliably.
    """
    around = {spec.name: spec.template.split(QUESTION) for spec in specs}
    wanted = text.strip()
    for tasks in _batches(levels, rng, most):
        for task, prompt in zip(tasks, buildable(scorer, tasks, lambda *_: None), strict=True):
            before, after = around[task.env]
            question = (prompt or "").removeprefix(before).removesuffix(after)
            if prompt is not None and wanted in (question.strip(), prompt.strip()):
                return Question(prompt, task)
    return Question(text, None)


def _batches(
    levels: Sequence[tuple[str, int]], rng: random.Random, most: int
) -> Iterator[list[TaskRef]]:
    kinds = [(env, level, split) for env, level in levels for split in Split]
    for begin in range(0, most, BATCH):
        yield [
            TaskRef(env, level, rng.getrandbits(63), split)
            for n in range(begin, min(begin + BATCH, most))
            for env, level, split in [kinds[n % len(kinds)]]
        ]
