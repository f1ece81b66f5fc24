"""What of an update one process reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import Tensor

from node.learner.batches import MicroBatch, Row
from node.learner.token_budget import TokenBudget
from node.learner.update_stats import Tally

T = TypeVar("T")


class Share:
    """All of it. Processes that train one policy together each give their learner one of their own.

    They call the same methods of their learners, and go through the model equally often.
    """

    def room(self, budget: TokenBudget, held: Sequence[float]) -> float:
        """The most that a row may hold uncut, where an update's rows hold so much."""
        return budget.tokens

    def cut(self, budget: TokenBudget, batch: MicroBatch) -> None:
        """Lower the budget: memory ran out in ``batch``."""
        budget.halve(batch)

    def rows(self, rows: list[Row]) -> list[Row]:
        """Those of an update's rows that are read here."""
        return rows

    def idle(self, batches: int) -> int:
        """How often others go through the model beyond ``batches`` times."""
        return 0

    def sum(self, value: Tensor) -> Tensor:
        """Over all processes, each of which holds a part of the weights."""
        return value

    def agreed(self, value: T) -> T:
        """The same in all processes: that of the one which holds the node."""
        return value

    def tally(self, tally: Tally) -> Tally:
        """Over all processes."""
        return tally
