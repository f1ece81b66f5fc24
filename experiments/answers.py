"""The set-ups of an experiment: answers of a few tokens, answers with their working, and games."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from experiments.recipe.corpus import GAMES, TINY, WORKING, TaskSet
from experiments.recipe.training import Stage
from node.errors import UsageError

Length = Literal["short", "long", "games"]


@dataclass(frozen=True, slots=True)
class Unlike:
    """What it takes for nodes that are not alike.

    Attributes:
        rounds: of a run in a regime, where nobody asks for another number.
        wide: name of the recipe of another shape.
        shipped_wide: whether the package has a model of it.
        halves: the families that each of two halves of divided nodes was taught.
        ease: how some of what the recipe spoiled is mended.
    """

    rounds: int
    wide: str
    shipped_wide: bool
    halves: tuple[tuple[str, ...], tuple[str, ...]]
    ease: Stage


@dataclass(frozen=True, slots=True)
class Answers:
    """What the nodes of an experiment answer, and how their base policies come to be.

    Attributes:
        tasks: the questions.
        max_new_tokens: of a completion.
        rounds, quick_rounds: of a run, where nobody asks for another number.
        recipe: name of the recipe, of which the package has a model.
        bury: how a skill is hidden, step by step.
        unlike: None where all nodes are alike.
        model: where every seed's base policy comes from; empty: each seed makes one of its own.
        buried: steps that it is buried under, where nobody asks for another number.
    """

    tasks: TaskSet
    max_new_tokens: int
    rounds: int
    quick_rounds: int
    recipe: str
    bury: Stage
    unlike: Unlike | None
    model: str = ""
    buried: int = 100

    @property
    def differing(self) -> Unlike:
        """What it takes for nodes that are not alike.

        Raises:
            UsageError: with these answers all are.
        """
        if self.unlike is None:
            remedy = "All of its nodes are alike: use short or long."
            raise UsageError("--answers", self.tasks.catalogue, remedy)
        return self.unlike


ANSWERS: dict[Length, Answers] = {
    "short": Answers(
        tasks=TINY,
        max_new_tokens=16,
        rounds=300,
        quick_rounds=100,
        recipe="tiny",
        bury=Stage(steps=100, lr=5e-4, noise=0.98),
        unlike=Unlike(
            rounds=150,
            wide="tiny-wide",
            shipped_wide=True,
            # Five levels each, as all levels are taught alike.
            halves=(
                ("chain_sum", "basic_arithmetic", "leg_counting", "base_conversion"),
                ("spell_backward", "gcd", "lcm"),
            ),
            ease=Stage(steps=100, lr=5e-4, noise=0.5),
        ),
    ),
    "long": Answers(
        tasks=WORKING,
        max_new_tokens=96,
        rounds=120,
        quick_rounds=40,
        recipe="tiny-working",
        bury=Stage(steps=100, lr=5e-4, noise=0.0, batch=64, slips=0.12),
        unlike=Unlike(
            rounds=90,
            wide="tiny-working-wide",
            shipped_wide=False,
            halves=(("adding", "climbing", "walking"), ("halving", "paying", "waiting")),
            ease=Stage(steps=300, lr=2e-3, noise=0.0, batch=64),
        ),
    ),
    "games": Answers(
        tasks=GAMES,
        max_new_tokens=64,
        rounds=100,
        quick_rounds=40,
        recipe="tiny-games",
        bury=Stage(steps=100, lr=5e-4, noise=0.98, batch=64),
        unlike=None,
        model="tiny-games",
        buried=0,
    ),
}


def answers_of(text: str, among: Collection[Length] = tuple(ANSWERS)) -> Length:
    """The length that was asked for.

    Raises:
        UsageError: there is no such set-up, or it is not ``among`` those of this experiment.
    """
    for length in among:
        if text == length:
            return length
    raise UsageError("--answers", text, f"Use {' or '.join(among)}.")
