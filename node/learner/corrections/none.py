"""External rollouts as the policy's own."""

from __future__ import annotations

import torch
from torch import Tensor

from node.learner.batches import MicroBatch
from node.learner.correction import Correction


class Uncorrected(Correction):
    """Takes external rollouts for the policy's own, as published in SAPO (arXiv:2509.08721)."""

    caution = (
        "what others wrote is learned as this node's own; where answers are long, or authors are "
        'stronger or weaker, that costs reward: use "better", or mixture.external = 0'
    )

    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """One everywhere, ``[C, T]``."""
        return torch.ones_like(prox)
