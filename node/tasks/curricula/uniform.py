"""Every level of an env alike."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from node.tasks.curriculum import Curriculum, EnvLevel


class Uniform(Curriculum):
    """Draws an env by weight, then one of its levels evenly."""

    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """Whatever was observed."""
        (env,) = rng.choices(list(weights), list(weights.values()))
        return rng.choice([level for level in levels if level[0] == env])
