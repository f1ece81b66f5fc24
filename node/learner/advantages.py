"""Advantages of a group's completions relative to one another."""

from __future__ import annotations

import math
from collections.abc import Sequence

STD_FLOOR = 1e-4


def informative(rewards: Sequence[float]) -> bool:
    """Whether the rewards differ; where they do not, every advantage is zero."""
    return min(rewards) != max(rewards)


def group_advantages(rewards: Sequence[float], normalise_std: bool) -> tuple[float, ...]:
    """``A_i = r_i - mean(r)``, divided by ``std(r) + 1e-4`` where ``normalise_std``.

    GRPO (arXiv:2402.03300, eq. 4) divides by the sample standard deviation; Dr. GRPO
    (arXiv:2503.20783) drops the division because it favours groups of little variance. Equal
    rewards give exact zeros, free of rounding.
    """
    if not informative(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
    scale = math.sqrt(variance) + STD_FLOOR if normalise_std else 1.0
    return tuple((reward - mean) / scale for reward in rewards)
