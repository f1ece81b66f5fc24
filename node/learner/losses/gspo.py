"""GSPO: one ratio a sequence."""

from __future__ import annotations

from torch import Tensor

from node.learner.loss import Counts, Loss, Terms, masked, pessimistic


class Gspo(Loss):
    """``sum_i s_i w_i max(-A r, -A clip(r))`` with ``r = exp(mean_t(cur - prox))``.

    One ratio a sequence (arXiv:2507.18071), whose clip range is far tighter than a token's: 3e-4
    and 4e-4 in the paper. ``w_i`` is the mean weight of the row; a group is averaged over its rows.
    Where turns have advantages of their own, a turn is a sequence.
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        log_ratio, _ = self.per_term(terms.cur - terms.prox, terms.mask)
        weight, _ = self.per_term(terms.weights, terms.mask)
        bounded = pessimistic(log_ratio.exp(), terms.advantages, self.clip)
        return (terms.shares * weight * bounded).sum()

    def per_term(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of each row's trained tokens, ``[B]``, and which rows have any."""
        length = mask.sum(-1)
        return masked(values, mask).sum(-1) / length.clamp(min=1), length > 0

    def size(self, counts: Counts) -> int:
        """Sequences, for each is one term."""
        return counts.sequences
