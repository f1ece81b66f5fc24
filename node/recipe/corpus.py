"""Questions of the tiny catalogue with right answers, and strings that answer nothing."""

from __future__ import annotations

import random
from dataclasses import dataclass

from node.tasks.catalogue import load_catalogue, open_catalogue
from node.tasks.task import Split, TaskSource

CATALOGUE = "tiny"
DRAWS = 6000
NOISE_LETTERS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt, as the policy reads it, and a right answer.

    Attributes:
        prompt: the question inside the catalogue's template.
        answer: what a perfect policy writes.
    """

    prompt: str
    answer: str


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


def noise_answer(rng: random.Random) -> str:
    """One to four random letters and digits: an answer that is right only by luck."""
    return "".join(rng.choices(NOISE_LETTERS, k=rng.randint(1, 4)))
