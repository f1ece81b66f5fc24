"""Base policies of a seed: how much of its skill each shows, and in which tasks it has any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Literal

from experiments.answers import Answers
from experiments.recipe.corpus import Questions, training_questions, untaught
from experiments.recipe.make import RECIPES, Made, follow, school
from node.config.learning import PolicySection
from node.policy.policy import Policy

Base = Literal["weak", "strong", "able", "half-a", "half-b", "wide"]
"""``strong`` is what the recipe makes, ``weak`` the same buried, ``able`` the same with its doubts
taken away in part. ``half-a`` and ``half-b`` were taught half of the families and buried; ``wide``
has another shape, width and tokenizer, and is buried."""

ORIGIN: dict[Base, str] = {"strong": "recipe", "weak": "recipe", "able": "recipe"}
"""Those that branch off from one run of the recipe; the others have one to themselves."""


def make_bases(
    kinds: Iterable[Base], seed: int, answers: Answers, model: str, steps: int
) -> Iterator[Made]:
    """Make base policies that branch off from one origin, in the order of ``kinds``.

    Args:
        model: the origin of all but ``wide``, a folder or a shipped model's name; empty: the
            recipe's.
        steps: how long the weak ones are buried.
    """
    origin: Made | None = None
    asked = training_questions(answers.tasks)
    for kind in kinds:
        questions = untaught(asked, _untaught(kind, answers))
        origin = origin or _origin(kind, questions, seed, answers, model)
        made = deepcopy(origin)
        if kind == "able":
            school(made, questions, answers.differing.ease, seed)
        elif kind != "strong" and steps:
            school(made, questions, replace(answers.bury, steps=steps), seed)
        yield made


def _untaught(kind: Base, answers: Answers) -> tuple[str, ...]:
    """The families that a base was not taught."""
    if kind not in ("half-a", "half-b"):
        return ()
    first, second = answers.differing.halves
    return second if kind == "half-a" else first


def _origin(kind: Base, questions: Questions, seed: int, answers: Answers, model: str) -> Made:
    name = answers.recipe
    if kind == "wide":
        name = answers.differing.wide
        model = name if answers.differing.shipped_wide else ""
    if model:
        policy = Policy.load(PolicySection(model=model, device="cpu"))
        return Made(policy.model, policy.tokenizer)
    recipe = RECIPES[name]
    if _untaught(kind, answers):
        teach, *rest = recipe.stages
        recipe = replace(recipe, stages=(replace(teach, steps=teach.steps // 2), *rest))
    return follow(recipe, questions, seed)
