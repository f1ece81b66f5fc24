"""A question for a person to put to a policy, and the task it is, so that answers can be scored."""

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
    """What a policy is asked.

    Attributes:
        prompt: as the policy reads it, before any chat template.
        task: what it is an instance of; None where nobody can say whether an answer is right.
    """

    prompt: str
    task: TaskRef | None


def drawn(scorer: Scorer, levels: Sequence[tuple[str, int]], rng: random.Random) -> Question:
    """A question that nobody trains on, of one of some ``(env, level)`` pairs.

    Raises:
        JudgeRefused: it cannot be built.
    """
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
    """The task whose question or whole prompt ``text`` is, looked for among drawn ones.

    A family cannot be asked whether a question is one of its own: it only draws them. So those of
    few different questions are recognised, and others hardly ever.

    Args:
        most: instances that are drawn of all levels together.

    Raises:
        JudgeRefused: nothing can be built now.
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
    """Instances of all levels and both splits in turn."""
    kinds = [(env, level, split) for env, level in levels for split in Split]
    for begin in range(0, most, BATCH):
        yield [
            TaskRef(env, level, rng.getrandbits(63), split)
            for n in range(begin, min(begin + BATCH, most))
            for env, level, split in [kinds[n % len(kinds)]]
        ]
