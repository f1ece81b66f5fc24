"""Bound on what peers' answers change in the policy, relative to the model that it began with.

Rewards verify that an answer is right, not what else it shows: right answers in a chosen style, or
lucky ones, pass every check and teach the style or the luck. Local rewards neither favor nor punish
a style, so nothing takes it back. Therefore a token of a peer's answer is imitated only while its
log-ratio of policy to reference is at most ``log ratio`` above what local right answers gained by
themselves. Beyond that, only local answers raise it: a skill that peers brought within reach of
sampling is confirmed by local rewards, and a style stays rare. The bound is one for all peers, so
more keys do not change it. If a reward depends on what its writer could not observe, luck may
look like skill, and the bound is ``HIDDEN_RATIO`` without any gain. It is the trust region of PPO
(arXiv:1707.06347) around a reference model, on peers' better answers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from node.learner.batches import MicroBatch

REACH = 0.05  # Probability up to which peers' answers raise any token: local sampling reaches it.
MEMORY = 0.9  # Weight of earlier updates in the gain of local answers.
HIDDEN_RATIO = 2.0  # Maximum ratio if a reward depends on hidden state, such as cards.


@dataclass(slots=True)
class LocalGain:
    """Mean log-ratio of policy to reference over local answers above their group's mean, nats.

    ``total`` is over ``tokens``; earlier updates count less and less.
    """

    total: float = 0.0
    tokens: float = 0.0

    def add(self, total: float, tokens: float) -> None:
        if tokens:
            self.total, self.tokens = MEMORY * self.total + total, MEMORY * self.tokens + tokens

    @property
    def mean(self) -> float:
        """Return the gain, never negative; 0 before the first local answer."""
        return max(0.0, self.total / self.tokens) if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class PeerBound:
    """Maximum log-ratio ``most`` to which peers' answers raise a token that is not out of reach.

    ``hidden`` is the maximum for completions whose reward depends on hidden state.
    """

    most: float = math.inf
    hidden: float = math.inf

    @classmethod
    def of(cls, ratio: float, gain: LocalGain) -> PeerBound:
        """Return the bound of an update; a ``ratio`` of 0 means none."""
        if not ratio:
            return cls()
        return cls(math.log(ratio) + gain.mean, math.log(min(ratio, HIDDEN_RATIO)))

    def reached(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        """Find peers' tokens that are imitated no further, bool ``[C, T]``.

        ``prox`` is the policy's log-prob when the step begins.
        """
        ceiling = (batch.reference + self.most).clamp(min=math.log(REACH))
        ceiling = torch.where(batch.hidden, batch.reference + self.hidden, ceiling)
        return imitated(batch) & (prox > ceiling)


def imitated(batch: MicroBatch) -> Tensor:
    """Find the tokens of peers' better answers that have a reference, bool ``[C, T]``."""
    better = ~batch.own & (batch.advantages > 0)[:, None]
    return batch.mask & better & batch.reference.isfinite()


def gained(prox: Tensor, batch: MicroBatch) -> Tensor:
    """Return the sum of log-ratios over local better answers' tokens, and their number, ``[2]``."""
    better = batch.mask & batch.own & (batch.advantages > 0)[:, None]
    known = better & batch.reference.isfinite()
    gain = torch.where(known, prox - batch.reference, 0.0)
    return torch.stack([gain.sum(), known.sum()])
