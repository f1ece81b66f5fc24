"""GRPO with an asymmetric clip."""

from __future__ import annotations

from torch import Tensor

from node.learner.loss import Loss, Terms, clipped_sum


class Grpo(Loss):
    """``sum s m w max(-A u, -A clip(u))``; a mean over each group's tokens.

    GRPO (arXiv:2402.03300) with DAPO's asymmetric clip (arXiv:2503.14476), whose token mean is
    taken within groups, and the decoupled weight of AReaL (arXiv:2505.24298).
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        return clipped_sum(terms, self.clip)
