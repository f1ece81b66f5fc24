"""A mean that can be added to and merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(slots=True)
class Mean:
    """Of the mean verified rewards of groups.

    Attributes:
        groups: how many.
        total: the sum of their rewards.
    """

    groups: int = 0
    total: float = 0.0

    def take(self, other: Mean) -> None:
        """Count what another one has counted."""
        self.groups += other.groups
        self.total += other.total

    @property
    def value(self) -> float | None:
        """The mean; None of nothing."""
        return self.total / self.groups if self.groups else None


def take_all(into: dict[str, Mean], others: Mapping[str, Mean]) -> None:
    """Add means to those of the same names."""
    for name, other in others.items():
        into.setdefault(name, Mean()).take(other)
