"""A hidden number, found by higher and lower."""

from __future__ import annotations

import random
import re
from typing import ClassVar

from node.environments.games.ranges import within

NUMBER = re.compile(r"[0-9]{1,4}")
HIGHEST = 900
"""Of the lowest number of a range."""


class Guess:
    """Says ``higher`` or ``lower`` until the number is named or ``tries`` are used up.

    Worth 1 where it is found, else 0.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, most: int = 8, tries: int = 4) -> str:
        """A range of ``most`` numbers; the hidden one does not follow from it."""
        rng = random.Random(f"guess/{seed}")
        low = rng.randint(1, HIGHEST)
        self._hidden = rng.randrange(low, low + within("most", most, 2, 99))
        self._left = within("tries", tries, 1, 16)
        self._found = False
        return f"Guess from {low} to {low + most - 1}"

    def step(self, action: str) -> tuple[str, bool]:
        """Compare a guess; what is no number of up to four ASCII digits costs a try as well."""
        self._left -= 1
        if not NUMBER.fullmatch(action):
            return "no number", not self._left
        guess = int(action)
        self._found = guess == self._hidden
        told = "higher" if guess < self._hidden else "lower"
        return told, self._found or not self._left

    def reward(self) -> float:
        """Whether it was found."""
        return float(self._found)
