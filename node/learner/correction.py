"""What a completion weighs that another policy wrote than the one which learns from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from node.config.kind import Kind
from node.learner.batches import MicroBatch


class Correction(Kind, ABC):
    """A rule for the weights of tokens that this node's policy did not write itself.

    Log-probs that an external author claims may lower a weight and must never raise it above what
    it is where nothing is claimed.

    Attributes:
        Options: keys of ``mixture.correction_options``.
        by_use: an external group's gradient also counts only as far as its right answers are
            plausible (:func:`node.learner.plausibility.usefulness`).
        caution: what whoever takes external groups with it is told at the start.
    """

    by_use: ClassVar[bool] = False
    caution: ClassVar[str] = ""

    @abstractmethod
    def external(self, prox: Tensor, entropies: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Weights of external tokens, ``[C, T]``, without a gradient; one where masked out.

        Args:
            prox: ``[C, T]``, log-probs under the policy as the update begins.
            entropies: ``[C, T]``, of that policy at each token, nats.
            mask: bool ``[C, T]``, external tokens that are trained.
        """

    def reads(self, advantage: float) -> bool:
        """Whether an external completion of that advantage is read; all are, if nothing is said."""
        return True

    def own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        """Likewise of own tokens whose behaviour log-probs are known; one, if nothing is said."""
        return torch.ones_like(prox)
