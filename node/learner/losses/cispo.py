"""CISPO: the ratio is clipped, and every token keeps its gradient."""

from __future__ import annotations

from torch import Tensor

from node.learner.loss import Loss, Terms, masked


class Cispo(Loss):
    """``sum s m w (-A sg(min(u, 1 + high)) cur)``; a mean over each group's tokens.

    The ratio is clipped and no token loses its gradient (arXiv:2506.13585, which leaves the
    lower bound open).
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        bounded = (terms.cur - terms.prox).exp().clamp(max=1 + self.clip.high).detach()
        tokens = -terms.weights * bounded * terms.advantages[:, None] * terms.cur
        return (masked(tokens, terms.mask).sum(-1) * terms.shares).sum()

    def leaves(self, ratio: Tensor) -> Tensor:
        """Only upwards."""
        return ratio > 1 + self.clip.high
