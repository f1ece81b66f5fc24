"""Advantages of a group's completions relative to one another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

from node.config.registry import Kind
from swarm.groups import informative


class Advantage(Kind, ABC):
    """One way to turn a group's rewards into advantages; each has a file in ``advantages/``.

    Attributes:
        Options: keys of ``learner.advantage_options``.
    """

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion; exactly zero, free of rounding, where all rewards are equal."""
        return self.of(rewards) if informative(rewards) else (0.0,) * len(rewards)

    @abstractmethod
    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion of a group whose rewards differ."""


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


class Centred(Advantage):
    """``A_i = r_i - mean(r)``.

    Dr. GRPO (arXiv:2503.20783) divides by no standard deviation, which favours groups of little
    variance.
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion."""
        mean = math.fsum(rewards) / len(rewards)
        return tuple(reward - mean for reward in rewards)
