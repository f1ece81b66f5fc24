"""Rewards above their group's mean."""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.learner.advantage import Advantage


class Centred(Advantage):
    """``A_i = r_i - mean(r)``.

    Dr. GRPO (arXiv:2503.20783) divides by no standard deviation, which favours groups of little
    variance.
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion."""
        mean = math.fsum(rewards) / len(rewards)
        return tuple(reward - mean for reward in rewards)
