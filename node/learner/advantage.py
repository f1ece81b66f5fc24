"""Advantages of a group's completions relative to one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from node.config.kind import Kind
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
