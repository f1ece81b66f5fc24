"""What a node believes of how often it solves each kind of task."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

Level = tuple[str, int]

KEPT = 0.7
"""Of earlier counts, when a level is practised again: the policy has changed since."""
FADE = 0.99
"""Of counts, with every draw of any level; what is never practised becomes unknown again."""


class Beliefs:
    """A Beta distribution of the success rate of every level, as in VADE (arXiv 2511.18902).

    Counts decay as in MoPPS (arXiv 2507.04632): with a constant success rate ``p`` and groups of
    ``G`` completions, a level's first parameter tends to ``1 + G p / (1 - KEPT)`` where nothing
    fades in between. A level that was never seen has the uniform prior.
    """

    def __init__(self) -> None:
        self._draws = 0
        self._seen: dict[Level, tuple[float, float, int]] = {}

    def observe(self, level: Level, solved: float, failed: float) -> None:
        """Take in a group: its summed rewards, and what they fall short of the best."""
        won, lost = self._counts(level)
        self._seen[level] = (KEPT * won + solved, KEPT * lost + failed, self._draws)

    def draw(self, level: Level, rng: random.Random) -> float:
        """A success rate, drawn from what is believed (Thompson sampling)."""
        won, lost = self._counts(level)
        return rng.betavariate(1 + won, 1 + lost)

    def tick(self) -> None:
        """One task was chosen."""
        self._draws += 1

    def state_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {"draws": self._draws, "seen": [[*k, *v] for k, v in self._seen.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self._draws = state["draws"]
        self._seen = {(env, n): (won, lost, at) for env, n, won, lost, at in state["seen"]}

    def _counts(self, level: Level) -> tuple[float, float]:
        won, lost, at = self._seen.get(level, (0.0, 0.0, 0))
        left = FADE ** (self._draws - at)
        return won * left, lost * left


def teaches(rate: float, group_size: int) -> float:
    """Chance that the completions of a group are neither all right nor all wrong."""
    return 1.0 - rate**group_size - (1.0 - rate) ** group_size
