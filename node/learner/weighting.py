"""Weights and proximal log-probs of an update's tokens."""

from __future__ import annotations

import torch
from torch import Tensor

from node.config.learning import LearnerSection
from node.learner.batches import MicroBatch
from node.learner.correction import Correction
from node.learner.corrections.tis import tis_weights
from node.learner.external_filters import unlikely
from node.learner.stale_tokens import Span, Stale, decoupled_weights, interpolated_prox


class Weighting:
    """Weights and proximal log-probs of an update.

    Args:
        config: bounds of the weights of own stale tokens.
        correction: of external rollouts, and of own ones that are not ``decoupled``.
        decoupled: own rollouts may be of earlier versions, and are weighed by
            :func:`node.learner.stale_tokens.decoupled_weights`, whatever the correction.
        floor: external completions that are :func:`node.learner.external_filters.unlikely` are not
            imitated.
    """

    def __init__(
        self, config: LearnerSection, correction: Correction, *, decoupled: bool, floor: bool
    ) -> None:
        self._config = config
        self._correction = correction
        self._decoupled = decoupled
        self._floor = floor
        self._stale = Stale(config.stale, config.stale_cap)

    def prox(self, cur: Tensor, batch: MicroBatch, span: Span) -> Tensor:
        """Proximal log-probs ``[C, T]``.

        Args:
            cur: ``[C, T]``, the policy's before these tokens' first step.
            span: of the update.
        """
        if not self._decoupled or self._config.prox == "start":
            return cur
        told = interpolated_prox(cur, batch.behaviour, batch.versions, span)
        return torch.where(batch.own & batch.known & (batch.versions >= 0), told, cur)

    def unlikely(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        """External completions that are not imitated for their likelihood, bool ``[C]``."""
        imitated = ~batch.own[:, 0] & (batch.advantages > 0)
        if not self._floor:
            return torch.zeros_like(imitated)
        return imitated & unlikely(prox, batch.mask)

    def weights(self, prox: Tensor, entropies: Tensor, batch: MicroBatch) -> Tensor:
        """Of each token, ``[C, T]``, without a gradient; one where not trained.

        What is replayed weighs as another's would, and no more than ``min(exp(prox - mu), 1)``
        where ``mu`` is known (DART, arXiv:2509.23866).

        Args:
            prox: of :meth:`prox`.
            entropies: ``[C, T]``, of the policy as the update begins.
        """
        own = batch.own & batch.known & batch.mask
        weights = torch.where(
            batch.own,
            self._own(prox, own, batch),
            self._correction.external(prox, entropies, batch.mask & ~batch.own, batch),
        ).masked_fill(self.unlikely(prox, batch)[:, None], 0.0)
        replayed = batch.replayed & batch.known & batch.mask
        most = tis_weights(prox, batch.behaviour, replayed, 1.0)
        return torch.where(replayed, weights.minimum(most), weights)

    def _own(self, prox: Tensor, mask: Tensor, batch: MicroBatch) -> Tensor:
        if self._decoupled:
            return decoupled_weights(prox, batch.behaviour, mask, self._stale)
        return self._correction.own(prox, mask, batch)
