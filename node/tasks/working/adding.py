"""Adding numbers up, two at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import ClassVar

from node.tasks.working.working import NUMBER, Working

_STEP = re.compile(rf"{NUMBER}\+{NUMBER}={NUMBER}")


class Adding(Working[tuple[int, ...]]):
    """``7 15 4`` becomes ``15+4=19 7+19=26``; which two come first is free."""

    settings: ClassVar = {"count": range(2, 33), "most": range(1, 1000)}

    def begin(self, rng: random.Random, **settings: int) -> tuple[int, ...]:
        """``count`` different numbers up to ``most``, or up to ``count`` where that is more."""
        most = max(settings["most"], settings["count"])
        return tuple(rng.sample(range(1, most + 1), settings["count"]))

    def question(self, state: tuple[int, ...]) -> str:
        """The numbers."""
        numbers = " ".join(map(str, state))
        return f"Add up {numbers}, two numbers at a time. Steps are written 2+3=5"

    def way(self, rng: random.Random, state: tuple[int, ...]) -> Iterator[str]:
        """Two drawn numbers a step."""
        left = list(state)
        while len(left) > 1:
            rng.shuffle(left)
            first, second = left.pop(), left.pop()
            left.append(first + second)
            yield f"{first}+{second}={first + second}"

    def move(self, state: tuple[int, ...], step: str) -> tuple[int, ...] | None:
        """Their sum in place of two numbers that are still there."""
        found = _STEP.fullmatch(step)
        if not found:
            return None
        first, second, total = map(int, found.groups())
        left = list(state)
        for number in (first, second):
            if number not in left:
                return None
            left.remove(number)
        return (*left, total) if total == first + second else None

    def arrived(self, state: tuple[int, ...]) -> bool:
        """One number is left."""
        return len(state) == 1
