"""Base policies of a seed: how much of its skill each shows, and in which tasks it has any."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Literal

from node.config.learning import PolicySection
from node.policy.policy import Policy
from node.recipe.corpus import Questions, training_questions, untaught
from node.recipe.make import RECIPES, Made, bury, follow, school
from node.recipe.training import Stage

Base = Literal["weak", "strong", "able", "half-a", "half-b", "wide"]
"""``strong`` is what the recipe makes, ``weak`` the same buried, ``able`` the same with its doubts
taken away in part. ``half-a`` and ``half-b`` were taught half of the families and buried; ``wide``
is the shipped ``tiny-wide``, buried."""

ORIGIN: dict[Base, str] = {"strong": "recipe", "weak": "recipe", "able": "recipe"}
"""Those that branch off from one run of the recipe; the others have one to themselves."""
OTHER_SHAPE = "tiny-wide"
HALF_A = ("chain_sum", "basic_arithmetic", "leg_counting", "base_conversion")
HALF_B = ("spell_backward", "gcd", "lcm")
"""Five levels each, as all levels are taught alike."""
UNTAUGHT: dict[Base, tuple[str, ...]] = {"half-a": HALF_B, "half-b": HALF_A}
TEACHING_STEPS = 600
"""Of half of the families: half of the recipe's."""
ABLE_STEPS, ABLE_NOISE = 100, 0.5


def make_bases(kinds: Iterable[Base], seed: int, model: str, steps: int) -> Iterator[Made]:
    """Make base policies that branch off from one origin, in the order of ``kinds``.

    Args:
        model: the origin of all but ``wide``, a folder or a shipped model's name; empty: the
            recipe's.
        steps: how long the weak ones are buried.
    """
    origin: Made | None = None
    for kind in kinds:
        questions = untaught(training_questions(), UNTAUGHT.get(kind, ()))
        origin = origin or _origin(kind, questions, seed, model)
        made = deepcopy(origin)
        if kind == "able":
            school(made, questions, Stage(ABLE_STEPS, lr=5e-4, noise=ABLE_NOISE), seed)
        elif kind != "strong" and steps:
            bury(made, questions, steps, seed)
        yield made


def _origin(kind: Base, questions: Questions, seed: int, model: str) -> Made:
    shipped = OTHER_SHAPE if kind == "wide" else model
    if shipped:
        policy = Policy.load(PolicySection(model=shipped, device="cpu"))
        return Made(policy.model, policy.tokenizer)
    recipe = RECIPES["tiny"]
    if kind in UNTAUGHT:
        teach, *rest = recipe.stages
        recipe = replace(recipe, stages=(replace(teach, steps=TEACHING_STEPS), *rest))
    return follow(recipe, questions, seed)
