"""Which of the levels that a node practises comes next."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from node.config.base import Section

EnvLevel = tuple[str, int]


class Curriculum(ABC):
    """A rule that draws levels, and may learn from how they go; each has a file in ``curricula/``.

    Args:
        group_size: completions a group.
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, keys of ``tasks.curriculum_options``; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, group_size: int, options: Any = None) -> None:
        self.group_size = group_size
        self.options = options

    @abstractmethod
    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """The level of the next task.

        Args:
            levels: what is practised.
            weights: relative frequency of every env in them, from zero up.
            rng: the only source of chance.
        """

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        """Take in how a group went that was written for a drawn level."""
        del level, rewards

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON does."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        del state
