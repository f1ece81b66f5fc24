"""Rewards above their group's mean, by their spread."""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.learner.advantage import Advantage

STD_FLOOR = 1e-4


class Standardised(Advantage):
    """``A_i = (r_i - mean(r)) / (std(r) + 1e-4)``, with the sample standard deviation.

    GRPO (arXiv:2402.03300, eq. 4).
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion."""
        mean = math.fsum(rewards) / len(rewards)
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
        scale = math.sqrt(variance) + STD_FLOOR
        return tuple((reward - mean) / scale for reward in rewards)
