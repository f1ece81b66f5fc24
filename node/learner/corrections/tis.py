"""Truncated importance weights."""

from __future__ import annotations

import torch
from torch import Tensor

from node.config.base import Section, key
from node.learner.batches import MicroBatch
from node.learner.correction import Correction


class TisOptions(Section):
    """Of truncated importance sampling."""

    cap: float = key(2.0, "Upper bound of a weight; 1 for external tokens.", gt=0)


class Truncated(Correction):
    """A token weighs ``min(exp(prox - mu), cap)`` where its behaviour log-prob ``mu`` is known."""

    Options = TisOptions
    options: TisOptions

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``; a claim lowers one and never raises it."""
        cap = min(self.options.cap, 1.0)
        return tis_weights(prox, batch.behaviour, mask & batch.known, cap)

    def own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights, ``[C, T]``."""
        return tis_weights(prox, batch.behaviour, mask, self.options.cap)


def tis_weights(prox: Tensor, mu: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights ``min(exp(prox - mu), cap)``, one where masked out.

    ``mu`` is the behaviour policy's log-prob. All ``[B, T]``; the result carries no gradient.
    Token-level truncation as in DART (arXiv:2509.23866).
    """
    return torch.where(mask, (prox - mu).exp().clamp(max=cap), 1.0).detach()
