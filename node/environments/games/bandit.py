"""A row of arms, of which one pays more often than the others."""

from __future__ import annotations

import random
import string
from typing import ClassVar

from node.environments.games.ranges import within

GOOD, BAD = 0.9, 0.15
"""How often the one pays, and each of the others."""


class Bandit:
    """Names its arms by letters; takes one at a time, and says whether it paid.

    Worth the share of pulls that paid; a letter that is no arm's pays nothing.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, arms: int = 2, pulls: int = 6) -> str:
        """Arms in any order; which one is good does not follow from their names."""
        self._rng = random.Random(f"bandit/{seed}")
        self._arms = "".join(self._rng.sample(string.ascii_lowercase, within("arms", arms, 2, 9)))
        self._good = self._rng.choice(self._arms)
        self._pulls = self._left = within("pulls", pulls, 1, 16)
        self._paid = 0
        return f"Pull {' '.join(self._arms)}"

    def step(self, action: str) -> tuple[str, bool]:
        """Pull an arm."""
        self._left -= 1
        drawn = self._rng.random()
        arm = len(action) == 1 and action in self._arms
        pays = arm and drawn < (GOOD if action == self._good else BAD)
        self._paid += pays
        return "paid" if pays else "nothing", not self._left

    def reward(self) -> float:
        """The share that paid."""
        return self._paid / self._pulls
