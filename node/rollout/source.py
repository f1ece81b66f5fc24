"""Where a round's own groups come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from node.learner.batches import TrainingGroup
from node.monitor.stopwatch import Stopwatch
from node.rollout.groups import OwnGroup

T = TypeVar("T")


class GroupSource(Protocol):
    """Where a round's own groups come from: the schedule is the source's.

    :class:`node.rollout.generator.Generator` writes them when asked and stands still while the
    policy learns; :class:`node.rollout.overlapping_generator.OverlappingGenerator` never does.
    """

    def generate(self, count: int, watch: Stopwatch) -> list[OwnGroup]:
        """Own groups of the next update, about ``count`` of them, none handed out before."""
        ...

    def newest(self) -> Sequence[TrainingGroup]:
        """Completions that were written last, the newest at the end, in an update or not.

        May be called from work that is done :meth:`beside`.
        """
        ...

    def beside(self, work: Callable[[], T]) -> T:
        """Do ``work``, an update, and whatever generation goes on meanwhile."""
        ...
