"""A task that this node rolls out."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.groups import TaskRef


@dataclass(frozen=True, slots=True)
class OwnTask:
    """One task to roll out: the family and level are chosen, the seed follows from the rest.

    Attributes:
        ref: what it is rebuilt from.
        epoch: in which its index was taken.
        index: number within the epoch, used once.
    """

    ref: TaskRef
    epoch: int
    index: int
