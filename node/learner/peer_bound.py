"""Bound on what peers' answers change in the policy, relative to the model that it began with.

Rewards verify that an answer is right, not what else it shows: right answers in a chosen style, or
lucky ones, pass every check and teach the style or the luck. Local rewards neither favor nor punish
a style, so nothing takes it back. Therefore a token of a peer's answer is imitated only while its
log-ratio of policy to reference is at most ``log ratio`` above what local right answers gained by
themselves. A phrase has several tokens, each perhaps within its bound, and the factors multiply. So
each stretch of tokens, of any length, has a bound, too: twice the ratio. Beyond that, only local
answers raise it: a skill that peers brought within reach of sampling is confirmed by local rewards,
and a style stays rare. The bound is one for all peers, so more keys do not change it. If a reward
depends on what its writer could not observe, luck may look like skill, and the bound is
``HIDDEN_RATIO`` without any gain. It is the trust region of PPO (arXiv:1707.06347) around a
reference model, on peers' better answers only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from node.learner.batches import MicroBatch

REACH = 0.05  # Probability up to which peers' answers raise anything: local sampling reaches it.
SEVERAL = 2.0  # The maximum ratio of several tokens together, relative to that of one.
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
    """Maximum log-ratio to which peers' answers raise a token or a stretch of tokens, nats.

    ``token`` is the maximum of a token; a stretch has ``SEVERAL`` times its ratio, plus ``gain``
    for each token. A stretch less probable than ``REACH`` has no maximum. ``hidden`` replaces
    ``token`` where the reward depends on hidden state: without gain, and at any probability.
    """

    token: float = math.inf
    gain: float = 0.0
    hidden: float = math.inf

    @classmethod
    def of(cls, ratio: float, gain: LocalGain) -> PeerBound:
        """Return the bound of an update; a ``ratio`` of 0 means none."""
        if not ratio:
            return cls()
        return cls(math.log(ratio), gain.mean, math.log(min(ratio, HIDDEN_RATIO)))

    def reached(self, prox: Tensor, batch: MicroBatch) -> Tensor:
        """Find peers' tokens that are imitated no further, bool ``[C, T]``.

        ``prox`` is the policy's log-prob when the step begins. For each token at which a stretch
        above the bound ends, all tokens of the stretch that was raised most are found.
        """
        mask = imitated(batch)
        limit = torch.where(batch.hidden, self.hidden, self.token)
        reach = torch.where(batch.hidden, -math.inf, math.log(REACH))
        gain = torch.where(batch.hidden, 0.0, self.gain)
        excess = torch.where(mask, prox - batch.reference - gain, 0.0)
        logprobs = torch.where(mask, prox, 0.0)
        over_limit = (excess > limit) & (logprobs > reach)
        starts, total = _raised_most(excess, logprobs, reach)
        return mask & (over_limit | _covered(starts, total > limit + math.log(SEVERAL)))


def _raised_most(excess: Tensor, logprobs: Tensor, reach: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each token, the stretch that ends there and was raised most, ``[C, T]`` each.

    The results are its first token, and by how many nats it was raised; minus infinity if even the
    token alone is less probable than ``reach``.
    """
    sums, probs = (pad(each, (1, 0)).cumsum(1) for each in (excess, logprobs))
    ends = probs[:, 1:].contiguous()
    # The log-prob falls with the length, so stretches from `first` on are probable enough.
    first = torch.searchsorted(-probs, reach - ends, right=True)
    last = torch.arange(excess.shape[1], device=excess.device).expand_as(first)
    starts = _lowest(sums[:, :-1], torch.minimum(first, last), last)
    total = sums[:, 1:] - sums.gather(1, starts)
    return starts, torch.where(first <= last, total, -math.inf)


def _lowest(values: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Return the index of the lowest value from ``first`` to ``last``, all int64 ``[C, T]``."""

    def lower(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(values.gather(1, one) <= values.gather(1, other), one, other)

    # Level k has the lowest of the 2**k values up to each place, or of all if these are fewer.
    levels = [last]
    for k in range(max(0, values.shape[1] - 1).bit_length()):
        earlier = (last - (1 << k)).clamp(min=0)
        levels.append(lower(levels[-1].gather(1, earlier), levels[-1]))
    # Two such runs, which may overlap, are the whole.
    level = (last - first + 1).float().log2().floor().long()
    table = torch.stack(levels)
    later = table.gather(0, level[None])[0]
    ends = first + (1 << level) - 1
    earlier = table.gather(2, ends.expand(len(table), *ends.shape)).gather(0, level[None])[0]
    return lower(earlier, later)


def _covered(begins: Tensor, chosen: Tensor) -> Tensor:
    """Find the tokens of the ``chosen`` stretches, from where each ``begins`` to its place."""
    steps = pad(-chosen.long(), (1, 0)).scatter_add(1, begins, chosen.long())
    return steps.cumsum(1)[:, :-1] > 0


def imitated(batch: MicroBatch) -> Tensor:
    """Find the tokens of peers' better answers that have a reference, bool ``[C, T]``."""
    better = ~batch.local & (batch.advantages > 0)[:, None]
    return batch.mask & better & batch.reference.isfinite()


def gained(prox: Tensor, batch: MicroBatch) -> Tensor:
    """Return the sum of log-ratios over local better answers' tokens, and their number, ``[2]``."""
    better = batch.mask & batch.local & (batch.advantages > 0)[:, None]
    known = better & batch.reference.isfinite()
    gain = torch.where(known, prox - batch.reference, 0.0)
    return torch.stack([gain.sum(), known.sum()])
