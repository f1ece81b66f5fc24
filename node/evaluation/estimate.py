"""Means over few seeds, and whether a difference is more than their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from swarm.common.util import t95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over seeds.

    Attributes:
        mean: of the values.
        error: standard error of the mean; None from a single seed.
        values: one a seed, in the order of seeds.
    """

    mean: float
    error: float | None
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Of at least one value."""
        n, mean = len(values), fmean(values)
        spread = sum((value - mean) ** 2 for value in values)
        return cls(mean, math.sqrt(spread / (n - 1) / n) if n > 1 else None, tuple(values))

    @property
    def margin(self) -> float | None:
        """Half of the 95 % t interval; None from a single seed."""
        return None if self.error is None else self.error * t95(len(self.values) - 1)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the 95 % interval leaves 0 out; None from a single seed."""
        margin = self.margin
        return None if margin is None else abs(self.mean) > margin
