"""Advantages of a group's completions relative to one another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from node.config.base import Section
from swarm.pooled_group import informative


class Advantage(ABC):
    """One way to turn a group's rewards into advantages; each has a file in ``advantages/``.

    Args:
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, keys of ``learner.advantage_options``; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, options: Any = None) -> None:
        self.options = options

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion; exactly zero, free of rounding, where all rewards are equal."""
        return self.of(rewards) if informative(rewards) else (0.0,) * len(rewards)

    @abstractmethod
    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion of a group whose rewards differ."""
