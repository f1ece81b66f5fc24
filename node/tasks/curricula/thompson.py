"""Levels that the policy is believed to solve sometimes."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from node.tasks.curriculum import Curriculum, EnvLevel
from node.tasks.success_rates import Beliefs, teaches


class Thompson(Curriculum):
    """Draws a level by weight times the chance that a group on it teaches anything.

    It is told how groups went, draws a success rate ``p`` of every level from what it believes, and
    takes ``1 - p^G - (1 - p)^G`` (Thompson sampling, as in VADE, arXiv 2511.18902).
    """

    def __init__(self, group_size: int, options: Any = None) -> None:
        super().__init__(group_size, options)
        self._beliefs = Beliefs()

    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """The more likely, the nearer its drawn success rate is to a half."""
        self._beliefs.tick()
        sizes = Counter(env for env, _ in levels)
        shares = [
            teaches(self._beliefs.draw(level, rng), self.group_size)
            * weights[level[0]]
            / sizes[level[0]]
            for level in levels
        ]
        (level,) = rng.choices(levels, shares)
        return level

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        """Believe it a little more."""
        self._beliefs.observe(level, sum(rewards), len(rewards) - sum(rewards))

    def state_dict(self) -> dict[str, Any]:
        """What is believed."""
        return self._beliefs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Believe what was believed; nothing, if another curriculum wrote it."""
        if state:
            self._beliefs.load_state_dict(state)
