"""GSPO: one ratio a sequence."""

from __future__ import annotations

from torch import Tensor

from node.learner.loss import Counts, Loss, Terms, masked, pessimistic


class Gspo(Loss):
    """``sum_i s_i w_i max(-A r, -A clip(r))`` with ``r = exp(mean_t(cur - prox))``.

    One ratio a sequence (arXiv:2507.18071), whose clip range is far tighter than a token's: 3e-4
    and 4e-4 in the paper. ``w_i`` is the mean weight of the row; a group is averaged over its rows.
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        length = terms.mask.sum(-1).clamp(min=1)
        ratio = (masked(terms.cur - terms.prox, terms.mask).sum(-1) / length).exp()
        weight = masked(terms.weights, terms.mask).sum(-1) / length
        return (terms.shares * weight * pessimistic(ratio, terms.advantages, self.clip)).sum()

    def size(self, counts: Counts) -> int:
        """Completions, for each is one term."""
        return counts.rows
