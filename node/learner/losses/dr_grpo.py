"""Dr. GRPO, free of length bias."""

from __future__ import annotations

from torch import Tensor

from node.learner.loss import Counts, Loss, Terms, clipped_sum


class DrGrpo(Loss):
    """GRPO's sum, each group's over its constant ``rows * cap``, free of length bias.

    From arXiv:2503.20783, whose advantages are not divided by the standard deviation either.
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        return clipped_sum(terms, self.clip)

    def size(self, counts: Counts) -> int:
        """A constant, whatever was written."""
        return counts.rows * counts.cap
