"""External answers count as far as this policy might have written them."""

from __future__ import annotations

import torch
from torch import Tensor

from node.learner.batches import MicroBatch
from node.learner.correction import Correction
from node.learner.loss import masked
from node.learner.plausibility import plausibility

NEGLIGIBLE = 1e-6
"""Weights below it would fill the backward pass with denormal numbers, of which each takes a
processor a hundred times as long as another one: text made for that would stop a node."""


class Tapered(Correction):
    """An external answer counts as far as this policy might have written it.

    The weights are those of :func:`tapered_weights`; its group counts by its use beside that.
    """

    by_use = True

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``; a claim lowers one and never raises it."""
        return tapered_weights(
            prox, entropies, batch.behaviour, batch.known, mask, batch.advantages
        )


def tapered_weights(
    prox: Tensor, entropies: Tensor, mu: Tensor, known: Tensor, mask: Tensor, advantages: Tensor
) -> Tensor:
    """Plausibility where ``A > 0``, else ``exp(min(0, sum_t(prox - mu), sum_t(prox + H)))``.

    After Tapered Off-Policy REINFORCE (arXiv:2503.14286). A stronger author's right answers are
    learned however improbable they are here as a whole, which importance weights would keep from
    happening; its wrong ones count only as far as this policy would write them, since pushing down
    what is improbable already moves the probability anywhere.

    How far that is, ``mu`` tells, which is its author's word: one who claims to have found its text
    improbable would have it weigh in full. So the text is also compared with what this policy
    would have written, whose log-prob is ``-H`` at the mean, and the lower of the two counts: no
    claim raises a weight. Of a right answer each token is compared so, with some nats to spare
    (:func:`node.learner.plausibility.plausibility`), or a phrase put in front of it would be
    learned.

    All ``[B, T]``. A weight below ``NEGLIGIBLE`` is zero. One where masked out; no gradient.

    Args:
        entropies: ``H``, ``[B, T]``, of the policy of ``prox`` at each token, nats.
        known: bool ``[B, 1]``, rows whose ``mu`` is claimed.
    """
    claimed = masked(prox - mu, mask & known).sum(-1, keepdim=True)
    expected = masked(prox + entropies, mask).sum(-1, keepdim=True)
    wrong = torch.minimum(claimed, expected).clamp(max=0.0).exp()
    weights = torch.where((advantages < 0)[:, None], wrong, plausibility(prox, entropies))
    return torch.where(mask, masked(weights, weights >= NEGLIGIBLE), 1.0).detach()
