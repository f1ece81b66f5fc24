"""The two set-ups of an experiment: answers of a few tokens, and answers with their working."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from node.errors import UsageError
from node.recipe.corpus import TINY, WORKING, TaskSet
from node.recipe.training import Stage

Length = Literal["short", "long"]


@dataclass(frozen=True, slots=True)
class Answers:
    """What the nodes of an experiment answer, and how their base policies come to be.

    Attributes:
        tasks: the questions.
        max_new_tokens: of a completion.
        rounds, regime_rounds, quick_rounds: of a run, where nobody asks for another number.
        recipe, wide: names of the recipes of the usual and of another shape.
        shipped_wide: whether the package has a model of the latter.
        halves: the families that each of two halves of divided nodes was taught.
        bury: how a skill is hidden, step by step.
        ease: how some of what the recipe spoiled is mended.
    """

    tasks: TaskSet
    max_new_tokens: int
    rounds: int
    regime_rounds: int
    quick_rounds: int
    recipe: str
    wide: str
    shipped_wide: bool
    halves: tuple[tuple[str, ...], tuple[str, ...]]
    bury: Stage
    ease: Stage


ANSWERS: dict[Length, Answers] = {
    "short": Answers(
        tasks=TINY,
        max_new_tokens=16,
        rounds=300,
        regime_rounds=150,
        quick_rounds=100,
        recipe="tiny",
        wide="tiny-wide",
        shipped_wide=True,
        # Five levels each, as all levels are taught alike.
        halves=(
            ("chain_sum", "basic_arithmetic", "leg_counting", "base_conversion"),
            ("spell_backward", "gcd", "lcm"),
        ),
        bury=Stage(steps=100, lr=5e-4, noise=0.98),
        ease=Stage(steps=100, lr=5e-4, noise=0.5),
    ),
    "long": Answers(
        tasks=WORKING,
        max_new_tokens=96,
        rounds=120,
        regime_rounds=90,
        quick_rounds=40,
        recipe="tiny-working",
        wide="tiny-working-wide",
        shipped_wide=False,
        halves=(("adding", "climbing", "walking"), ("halving", "paying", "waiting")),
        bury=Stage(steps=100, lr=5e-4, noise=0.0, batch=64, slips=0.12),
        ease=Stage(steps=300, lr=2e-3, noise=0.0, batch=64),
    ),
}


def answers_of(text: str) -> Length:
    """The length that was asked for.

    Raises:
        UsageError: there is no such set-up.
    """
    if text not in ANSWERS:
        raise UsageError("--answers", text, f"Use {' or '.join(ANSWERS)}.")
    return text
