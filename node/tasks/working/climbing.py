"""Climbing to a number, by doubling and adding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from node.tasks.working.working import Working, whole

MOST_ADDED = 5


@dataclass(frozen=True, slots=True)
class Climb:
    """The number one has, and the one to come to."""

    here: int
    goal: int


class Climbing(Working[Climb]):
    """From ``4`` to ``19`` is ``8 16 19`` or ``9 14 19`` or any other way."""

    settings: ClassVar = {"most": range(20, 3001)}

    def begin(self, rng: random.Random, **settings: int) -> Climb:
        """To a number from half of ``most`` up, from one of its first quarter."""
        most = settings["most"]
        return Climb(rng.randint(1, most // 4), rng.randint(most // 2, most))

    def question(self, state: Climb) -> str:
        """The two numbers."""
        climb = f"Climb from {state.here} to {state.goal}"
        return f"{climb}. Every step doubles the number or adds 1 to 5. Write down every number"

    def way(self, rng: random.Random, state: Climb) -> Iterator[str]:
        """A doubling where there is room for it, or any number added, drawn."""
        here, goal = state.here, state.goal
        while here != goal:
            nexts = [2 * here] * (here > MOST_ADDED) + [here + rng.randint(1, MOST_ADDED)]
            here = min(rng.choice([n for n in nexts if n <= goal] or [goal]), goal)
            yield str(here)

    def move(self, state: Climb, step: str) -> Climb | None:
        """Twice as much, or 1 to 5 more."""
        number = whole(step)
        if number is None or not (
            number == 2 * state.here or 1 <= number - state.here <= MOST_ADDED
        ):
            return None
        return replace(state, here=number)

    def arrived(self, state: Climb) -> bool:
        """It is the number to come to."""
        return state.here == state.goal
