"""Bringing a number down to another, by halves and small steps."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from node.tasks.working.working import Working, whole

TAKEN = (1, 3, 7)
LOWEST = 30
"""Where questions end at most: the way to a large number is all small steps."""


@dataclass(frozen=True, slots=True)
class Descent:
    """The number one has, and the one to come to."""

    here: int
    goal: int


class Halving(Working[Descent]):
    """From ``20`` to ``3`` is ``10 7 6 3`` or ``19 12 6 3`` or any other way."""

    settings: ClassVar = {"most": range(10, 100_000_000)}

    def begin(self, rng: random.Random, **settings: int) -> Descent:
        """From half of ``most`` up to it, to a number from its first quarter."""
        most = settings["most"]
        return Descent(rng.randint(most // 2, most), rng.randint(0, min(most // 4, LOWEST)))

    def question(self, state: Descent) -> str:
        """The two numbers."""
        down = f"Bring {state.here} down to {state.goal}. Every step halves an even number"
        return f"{down} or takes away 1, 3 or 7. Write down every number"

    def way(self, rng: random.Random, state: Descent) -> Iterator[str]:
        """A half where there is one that is not too low, or less by a drawn number."""
        here = state.here
        while here != state.goal:
            below = [number for number in _below(here) if number >= state.goal]
            here = below[0] if rng.random() < 0.5 else rng.choice(below)
            yield str(here)

    def move(self, state: Descent, step: str) -> Descent | None:
        """A half, or 1, 3 or 7 less."""
        number = whole(step)
        return None if number not in _below(state.here) else replace(state, here=number)

    def arrived(self, state: Descent) -> bool:
        """It is the number to come to."""
        return state.here == state.goal


def _below(number: int) -> list[int]:
    """What one step can make of a number, the least first."""
    halves = [number // 2] if number and number % 2 == 0 else []
    return sorted(halves + [number - taken for taken in TAKEN if taken <= number])
