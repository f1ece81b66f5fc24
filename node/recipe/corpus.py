"""Questions of the tiny catalogue with right answers, and strings that answer nothing."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.task import TaskSource
from swarm.task_ref import Split

Questions = Mapping[tuple[str, int], Sequence["Question"]]
"""By family and level."""
CATALOGUE = "tiny"
DRAWS = 6000
NOISE_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as the policy reads it, and a right answer.

    Attributes:
        prompt: the question inside the catalogue's template.
        answer: what a perfect policy writes.
        taught: whether the policy is ever shown that answer; otherwise random strings alone.
    """

    prompt: str
    answer: str
    taught: bool = True


def open_tasks() -> dict[str, TaskSource]:
    """The families of the tiny catalogue, by name."""
    return open_catalogue(load_catalogue(CATALOGUE), {})


def training_questions(draws: int = DRAWS) -> dict[tuple[str, int], list[Question]]:
    """Different training questions by (family, level), in the order of their seeds.

    The split is the one that every node keeps to: whatever is held out for evaluation is never
    in the training text.

    Args:
        draws: seeds tried per level; repeated questions are dropped.
    """
    found: dict[tuple[str, int], list[Question]] = {}
    for env, source in open_tasks().items():
        for level in range(source.levels):
            tasks = [source.build(level, seed, Split.TRAIN) for seed in range(draws)]
            answers = {task.prompt: str(task.entry["answer"]) for task in tasks}
            found[env, level] = [Question(prompt, answer) for prompt, answer in answers.items()]
    return found


def untaught(questions: Questions, families: Collection[str]) -> Questions:
    """The same questions, with those of ``families`` never answered right."""
    return {
        (env, level): [replace(q, taught=False) for q in asked] if env in families else asked
        for (env, level), asked in questions.items()
    }


def noise_answer(rng: random.Random) -> str:
    """One to four random letters and digits: an answer that is right only by luck."""
    return "".join(rng.choices(NOISE_LETTERS, k=rng.randint(1, 4)))
