"""Policy-gradient losses and advantages: pure functions on right-padded tensors.

An update's loss is a mean over its groups, and every group has the same weight in it. Within a
group, :meth:`Loss.size` is the divisor, by default the number of tokens. A row carries its share
``s`` in both means (:meth:`Loss.share`), so micro-batches add up exactly and a masked token does
not inflate the others. If all groups have equally many tokens, this equals DAPO's mean over all
tokens (arXiv:2503.14476), which otherwise lets groups of long completions dominate.

``u = exp(cur - prox)``, ``A`` is the advantage, ``m`` the mask and ``w`` the weight of a token. No
log-ratio is further from zero than ``MAX_LOG_RATIO``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from node.config.registry import Plugin
from node.config.schema import Section
from swarm.groups import informative


@dataclass(frozen=True, slots=True)
class Terms:
    """Inputs of a loss; log-probs are of the sampling distribution, after temperature.

    A row is a completion. ``prox`` is from before the first step. ``weights`` corrects for a
    behavior policy other than ``prox``. ``advantages`` and ``shares`` are ``[B]``, the others
    ``[B, T]``; all are float32 except the bool ``mask`` of trained tokens.
    """

    cur: Tensor
    prox: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a group, before anything in it is skipped or masked.

    ``rows`` are completions; ``cap`` is the maximum of trained tokens per completion.
    """

    tokens: int
    rows: int
    cap: int


@dataclass(frozen=True, slots=True)
class Clip:
    """Trust region of the ratio: ``[1 - low, 1 + high]``."""

    low: float
    high: float


MAX_LOG_RATIO = 20.0  # nats; without a limit one token overflows float32, and its gradient is NaN


def bounded(log_ratio: Tensor) -> Tensor:
    """Return log-ratios within ``MAX_LOG_RATIO`` of zero, infinite ones included."""
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


class Loss(ABC):
    """Policy loss: turns advantages into a gradient, within a trust region ``clip``.

    ``Options`` describes the keys of ``learner.loss_options``; None if there are none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, clip: Clip, options: Any = None) -> None:
        self.clip = clip
        self.options = options

    @abstractmethod
    def __call__(self, terms: Terms) -> Tensor:
        """Return the loss of some rows, a differentiable scalar; sums over rows add up."""

    def per_term(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Map token values ``[B, T]`` to terms, by default tokens; also map the mask."""
        return values, mask

    def leaves(self, ratio: Tensor) -> Tensor:
        """Return which ratios the loss clips, for either sign of the advantage."""
        return (ratio < 1 - self.clip.low) | (ratio > 1 + self.clip.high)

    def size(self, counts: Counts) -> int:
        """Return the divisor of a group's sum; by default its trained tokens."""
        return counts.tokens

    def share(self, counts: Counts, groups: int) -> float:
        """Return the weight of one term in an update of ``groups`` groups."""
        return 1.0 / (max(1, self.size(counts)) * groups)


def clipped_sum(terms: Terms, clip: Clip) -> Tensor:
    """Return PPO's ``sum s m w max(-A u, -A clip(u))`` (arXiv:1707.06347), a scalar."""
    # Mask before exp: the gradient of an unused infinity is NaN.
    ratio = bounded(masked(terms.cur - terms.prox, terms.mask)).exp()
    losses = terms.weights * pessimistic(ratio, terms.advantages[:, None], clip)
    return (masked(losses, terms.mask).sum(-1) * terms.shares).sum()


def pessimistic(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """Return ``max(-A u, -A clip(u))``, in the shape of ``ratio``."""
    clipped = ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(-advantages * ratio, -advantages * clipped)


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """Return ``values`` where the mask is true, else zero, even for non-finite values."""
    return torch.where(mask, values, 0.0)


class Grpo(Loss):
    """``sum s m w max(-A u, -A clip(u))``, DAPO's mean over each group's tokens.

    GRPO (arXiv:2402.03300) with DAPO's asymmetric clip and mean over tokens (arXiv:2503.14476) and
    AReaL's decoupled weight (arXiv:2505.24298). GRPO's paper takes the mean of each completion
    first, which favors short right answers and long wrong ones.
    """

    def __call__(self, terms: Terms) -> Tensor:
        return clipped_sum(terms, self.clip)


class DrGrpo(Grpo):
    """GRPO's sum over ``rows * learner.max_completion_tokens`` (arXiv:2503.20783).

    The divisor is a constant, so there is no length bias.
    """

    def size(self, counts: Counts) -> int:
        return counts.rows * counts.cap


class Gspo(Loss):
    """``sum_i s_i w_i max(-A r, -A clip(r))`` with ``r = exp(mean_t(cur - prox))``.

    One ratio per sequence or turn (arXiv:2507.18071), with a much tighter clip range: 3e-4 and 4e-4
    in the paper. ``w_i`` is the mean weight of the row; a group is averaged over its rows.
    """

    def __call__(self, terms: Terms) -> Tensor:
        log_ratio, _ = self.per_term(terms.cur - terms.prox, terms.mask)
        weight, _ = self.per_term(terms.weights, terms.mask)
        losses = pessimistic(bounded(log_ratio).exp(), terms.advantages, self.clip)
        return (terms.shares * weight * losses).sum()

    def per_term(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        length = mask.sum(-1)
        return masked(values, mask).sum(-1) / length.clamp(min=1), length > 0

    def size(self, counts: Counts) -> int:
        return counts.rows


class Cispo(Loss):
    """``sum s m w (-A sg(min(u, 1 + high)) cur)``, a mean over each group's tokens.

    Every token keeps its gradient (arXiv:2506.13585, which leaves the lower bound open).
    """

    def __call__(self, terms: Terms) -> Tensor:
        ratio = bounded(terms.cur - terms.prox).exp().clamp(max=1 + self.clip.high).detach()
        losses = -terms.weights * ratio * terms.advantages[:, None] * terms.cur
        return (masked(losses, terms.mask).sum(-1) * terms.shares).sum()

    def leaves(self, ratio: Tensor) -> Tensor:
        return ratio > 1 + self.clip.high


class Advantage(Plugin, ABC):
    """Function from rewards to advantages; ``Options``: ``learner.advantage_options``."""

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """Return one advantage per completion; exactly zero if all rewards are equal."""
        return self.of(rewards) if informative(rewards) else (0.0,) * len(rewards)

    @abstractmethod
    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """Return one advantage per completion of a group whose rewards differ."""


STD_FLOOR = 1e-4


class Standardised(Advantage):
    """GRPO (arXiv:2402.03300, eq. 4): ``A_i = (r_i - mean(r)) / (std(r) + 1e-4)``.

    ``std`` is the sample standard deviation.
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        mean = math.fsum(rewards) / len(rewards)
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
        scale = math.sqrt(variance) + STD_FLOOR
        return tuple((reward - mean) / scale for reward in rewards)


class Centred(Advantage):
    """Dr. GRPO (arXiv:2503.20783): ``A_i = r_i - mean(r)``.

    Division by the standard deviation would favor groups of low variance.
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        mean = math.fsum(rewards) / len(rewards)
        return tuple(reward - mean for reward in rewards)
