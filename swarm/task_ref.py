"""What a task is named by: from this alone everybody builds the same one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.keys import task_seed


class Split(Enum):
    """Which questions a task may be drawn from."""

    TRAIN = "train"
    HELDOUT = "heldout"


@dataclass(frozen=True, slots=True)
class TaskRef:
    """The coordinates of one task.

    Attributes:
        env: name of a task family in the manifest's catalogue.
        level: index into that family's levels.
        seed: the 63-bit number that the instance is drawn with.
        split: what it is for.
    """

    env: str
    level: int
    seed: int
    split: Split = Split.TRAIN

    @classmethod
    def shared(cls, author: bytes, env: str, level: int, epoch: int, index: int) -> TaskRef:
        """The task of an author's ``index`` in an epoch, as everybody derives it."""
        return cls(env, level, task_seed(author, epoch, index))
