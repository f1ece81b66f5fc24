"""Means over few seeds, and whether a difference is more than their noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

# Two-sided 95 % points of Student's t by degrees of freedom, from 1 on.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)


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
        if self.error is None:
            return None
        freedom = len(self.values) - 1
        return self.error * (_T95[freedom - 1] if freedom <= len(_T95) else 1.96)

    @property
    def beyond_noise(self) -> bool | None:
        """Whether the 95 % interval leaves 0 out; None from a single seed."""
        margin = self.margin
        return None if margin is None else abs(self.mean) > margin
