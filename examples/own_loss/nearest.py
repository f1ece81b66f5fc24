"""A loss of one's own: the clipped objective, with a pull back to where the step began."""

from __future__ import annotations

from torch import Tensor

from node.config.schema import Section, key
from node.learner.losses import Loss, Terms, bounded, clipped_sum, masked


class NearestOptions(Section):
    """Keys of ``learner.loss_options``; the configuration checks them against these limits."""

    beta: float = key(0.04, "Weight of the pull.", ge=0, le=10)


class Nearest(Loss):
    """``sum s m (w max(-A u, -A clip(u)) + beta (1 / u - 1 + log u))``.

    GRPO's penalty (arXiv:2402.03300, eq. 4), whose reference is the policy that the step began
    with: the unbiased estimate k3 of its divergence. In the first epoch both policies are equal,
    and the pull has no gradient.
    """

    Options = NearestOptions
    options: NearestOptions

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        # Before exp, because the gradient of an infinity is NaN even where it is masked.
        log_ratio = bounded(masked(terms.cur - terms.prox, terms.mask))
        pull = ((-log_ratio).exp() - 1 + log_ratio).sum(-1)
        return clipped_sum(terms, self.clip) + self.options.beta * (terms.shares * pull).sum()
