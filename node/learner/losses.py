"""Policy-gradient losses: pure functions on right-padded tensors.

An update's loss is a mean over its groups, and every group weighs the same in it whatever the
number and length of its completions: within a group it is the mean that the loss's paper takes. A
row brings along its share ``s`` in both means (:meth:`Loss.share`), so that each loss is a plain
sum, micro-batches add up to it exactly, and masking a token or giving it a weight of zero never
inflates the others. Where all groups have as many tokens, that equals DAPO's mean over all tokens
(arXiv:2503.14476), which elsewhere lets a group of long completions outvote the others.

With ``u = exp(cur - prox)``, ``A`` the advantage, ``m`` the mask and ``w`` the weight of a token.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from node.config.registry import Kind
from node.config.schema import Section
from swarm.groups import informative


@dataclass(frozen=True, slots=True)
class Terms:
    """What a loss is made of. Log-probs are of the distribution sampled from, after temperature.

    A row is a completion, or one turn of it where turns have advantages of their own.

    Attributes:
        cur: float32 ``[B, T]``, log-probs of the sampled tokens under the current policy.
        prox: float32 ``[B, T]``, the same under the policy that these tokens' first step begins
            with.
        advantages: float32 ``[B]``.
        mask: bool ``[B, T]``, true on trained tokens.
        weights: float32 ``[B, T]``, corrects for a behaviour policy other than ``prox``.
        shares: float32 ``[B]``, see :meth:`Loss.share`.
    """

    cur: Tensor
    prox: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor
    shares: Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a group, before anything in it was skipped or masked.

    Attributes:
        tokens: trained tokens.
        rows: completions.
        sequences: what has an advantage: completions, or turns where these have their own.
        cap: the longest completion that may be trained on, tokens.
    """

    tokens: int
    rows: int
    sequences: int
    cap: int


@dataclass(frozen=True, slots=True)
class Clip:
    """Trust region of the ratio: ``[1 - low, 1 + high]``."""

    low: float
    high: float


class Loss(ABC):
    """One way to turn advantages into a gradient.

    Args:
        clip: the trust region that the configuration asks for.
        options: an instance of ``Options``, where the loss has settings of its own.

    Attributes:
        Options: those settings, keys of ``learner.loss_options``; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, clip: Clip, options: Any = None) -> None:
        self.clip = clip
        self.options = options

    @abstractmethod
    def __call__(self, terms: Terms) -> Tensor:
        """The loss of some rows, a scalar with a gradient; sums over rows add up."""

    def per_term(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """From a value of each token, ``[B, T]``, that of each term, and which terms are trained.

        A term is what has a ratio of its own: a token, where nothing else is said.
        """
        return values, mask

    def leaves(self, ratio: Tensor) -> Tensor:
        """Which ratios the loss clips, whatever the sign of the advantage."""
        return (ratio < 1 - self.clip.low) | (ratio > 1 + self.clip.high)

    def size(self, counts: Counts) -> int:
        """What a group's sum is divided by: its trained tokens, where nothing else is said."""
        return counts.tokens

    def share(self, counts: Counts, groups: int) -> float:
        """What one term of a group's sum counts in an update of ``groups``."""
        return 1.0 / (max(1, self.size(counts)) * groups)


def clipped_sum(terms: Terms, clip: Clip) -> Tensor:
    """``sum s m w max(-A u, -A clip(u))``, a scalar: PPO's objective (arXiv:1707.06347)."""
    # Masked before it is raised: the gradient of an infinity that nobody reads is no number.
    ratio = masked(terms.cur - terms.prox, terms.mask).exp()
    tokens = terms.weights * pessimistic(ratio, terms.advantages[:, None], clip)
    return (masked(tokens, terms.mask).sum(-1) * terms.shares).sum()


def pessimistic(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    """``max(-A u, -A clip(u))``, of the shape of ``ratio``."""
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(-advantages * ratio, -advantages * bounded)


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """``values`` where the mask is true, else zero, whatever stands there."""
    return torch.where(mask, values, 0.0)


class Grpo(Loss):
    """``sum s m w max(-A u, -A clip(u))``; a mean over each group's tokens.

    GRPO (arXiv:2402.03300) with DAPO's asymmetric clip (arXiv:2503.14476), whose token mean is
    taken within groups, and the decoupled weight of AReaL (arXiv:2505.24298).
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        return clipped_sum(terms, self.clip)


class DrGrpo(Loss):
    """GRPO's sum, each group's over its constant ``rows * cap``, free of length bias.

    From arXiv:2503.20783, whose advantages are not divided by the standard deviation either.
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        return clipped_sum(terms, self.clip)

    def size(self, counts: Counts) -> int:
        """A constant, whatever was written."""
        return counts.rows * counts.cap


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


class Cispo(Loss):
    """``sum s m w (-A sg(min(u, 1 + high)) cur)``; a mean over each group's tokens.

    The ratio is clipped and no token loses its gradient (arXiv:2506.13585, which leaves the
    lower bound open).
    """

    def __call__(self, terms: Terms) -> Tensor:
        """A scalar."""
        bounded = (terms.cur - terms.prox).exp().clamp(max=1 + self.clip.high).detach()
        tokens = -terms.weights * bounded * terms.advantages[:, None] * terms.cur
        return (masked(tokens, terms.mask).sum(-1) * terms.shares).sum()

    def leaves(self, ratio: Tensor) -> Tensor:
        """Only upwards."""
        return ratio > 1 + self.clip.high


class Advantage(Kind, ABC):
    """One way to turn a group's rewards into advantages; each has a file in ``advantages/``.

    Attributes:
        Options: keys of ``learner.advantage_options``.
    """

    def __call__(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion; exactly zero, free of rounding, where all rewards are equal."""
        return self.of(rewards) if informative(rewards) else (0.0,) * len(rewards)

    @abstractmethod
    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion of a group whose rewards differ."""


STD_FLOOR = 1e-4


class Standardised(Advantage):
    """``A_i = (r_i - mean(r)) / (std(r) + 1e-4)``, with the sample standard deviation.

    GRPO (arXiv:2402.03300, eq. 4).
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion."""
        mean = math.fsum(rewards) / len(rewards)
        variance = math.fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)
        scale = math.sqrt(variance) + STD_FLOOR
        return tuple((reward - mean) / scale for reward in rewards)


class Centred(Advantage):
    """``A_i = r_i - mean(r)``.

    Dr. GRPO (arXiv:2503.20783) divides by no standard deviation, which favours groups of little
    variance.
    """

    def of(self, rewards: Sequence[float]) -> tuple[float, ...]:
        """One a completion."""
        mean = math.fsum(rewards) / len(rewards)
        return tuple(reward - mean for reward in rewards)
