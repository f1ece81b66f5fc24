"""Policy-gradient losses as pure functions on right-padded tensors.

Each loss is a sum over tokens or rows divided by counts of the whole update, passed in, so that
micro-batches add up to it exactly and masking a token never inflates the others. With
``u = exp(cur - prox)``, ``A`` the advantage, ``m`` the mask and ``w`` the weight of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Terms:
    """What a loss is made of. Log-probs are of the distribution sampled from, after temperature.

    Attributes:
        cur: float32 ``[B, T]``, log-probs of the sampled tokens under the current policy.
        prox: float32 ``[B, T]``, the same under the policy frozen when the update began.
        advantages: float32 ``[B]``.
        mask: bool ``[B, T]``, true on trained tokens.
        weights: float32 ``[B, T]``, corrects for a behaviour policy other than ``prox``.
    """

    cur: Tensor
    prox: Tensor
    advantages: Tensor
    mask: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of a whole update, before anything was skipped or masked.

    Attributes:
        tokens: trained tokens.
        rows: completions.
        cap: the longest completion that may be trained on, tokens.
    """

    tokens: int
    rows: int
    cap: int


@dataclass(frozen=True, slots=True)
class Clip:
    """Trust region of the ratio: ``[1 - low, 1 + high]``."""

    low: float
    high: float


Loss = Callable[[Terms, Counts, Clip], Tensor]


def grpo(terms: Terms, counts: Counts, clip: Clip) -> Tensor:
    """``sum m w max(-A u, -A clip(u)) / tokens``, a scalar.

    GRPO (arXiv:2402.03300) with DAPO's asymmetric clip and token mean (arXiv:2503.14476) and
    the decoupled weight of AReaL (arXiv:2505.24298).
    """
    return _clipped_sum(terms, clip) / max(1, counts.tokens)


def dr_grpo(terms: Terms, counts: Counts, clip: Clip) -> Tensor:
    """GRPO's sum over the constant ``rows * cap``, free of length bias; a scalar.

    From arXiv:2503.20783, whose advantages are not divided by the standard deviation either.
    """
    return _clipped_sum(terms, clip) / max(1, counts.rows * counts.cap)


def gspo(terms: Terms, counts: Counts, clip: Clip) -> Tensor:
    """``sum_i w_i max(-A s, -A clip(s)) / rows`` with ``s = exp(mean_t(cur - prox))``, a scalar.

    One ratio a sequence (arXiv:2507.18071), whose clip range is far tighter than a token's: 3e-4
    and 4e-4 in the paper. ``w_i`` is the mean weight of the row.
    """
    length = terms.mask.sum(-1).clamp(min=1)
    ratio = (_masked(terms.cur - terms.prox, terms.mask).sum(-1) / length).exp()
    weight = _masked(terms.weights, terms.mask).sum(-1) / length
    return (weight * _pessimistic(ratio, terms.advantages, clip)).sum() / max(1, counts.rows)


def cispo(terms: Terms, counts: Counts, clip: Clip) -> Tensor:
    """``sum m w (-A sg(min(u, 1 + high)) cur) / tokens``, a scalar.

    The ratio is clipped and no token loses its gradient (arXiv:2506.13585, which leaves the
    lower bound open).
    """
    bounded = (terms.cur - terms.prox).exp().clamp(max=1 + clip.high).detach()
    tokens = -terms.weights * bounded * terms.advantages[:, None] * terms.cur
    return _masked(tokens, terms.mask).sum() / max(1, counts.tokens)


def tis_weights(prox: Tensor, mu: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights ``min(exp(prox - mu), cap)``, one where masked out.

    ``mu`` is the behaviour policy's log-prob. All ``[B, T]``; the result carries no gradient.
    Token-level truncation as in DART (arXiv:2509.23866).
    """
    return torch.where(mask, (prox - mu).exp().clamp(max=cap), 1.0).detach()


def tapered_weights(prox: Tensor, mu: Tensor, mask: Tensor, advantages: Tensor) -> Tensor:
    """One where ``A > 0``, else the sequence's ``min(exp(sum_t(prox - mu)), 1)``; ``[B, T]``.

    Tapered Off-Policy REINFORCE (arXiv:2503.14286). A stronger author's right answers are learned
    in full however improbable they are here, which importance weights would keep from happening;
    its wrong ones count only as far as this policy would write them, since pushing down what is
    improbable already moves the probability anywhere. One where masked out; no gradient.
    """
    drift = _masked(prox - mu, mask).sum(-1, keepdim=True)
    tapered = mask & (advantages < 0)[:, None]
    return torch.where(tapered, drift.exp().clamp(max=1.0), 1.0).detach()


def _clipped_sum(terms: Terms, clip: Clip) -> Tensor:
    ratio = (terms.cur - terms.prox).exp()
    tokens = terms.weights * _pessimistic(ratio, terms.advantages[:, None], clip)
    return _masked(tokens, terms.mask).sum()


def _pessimistic(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(-advantages * ratio, -advantages * bounded)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0)


LOSSES: dict[str, Loss] = {"grpo": grpo, "dr_grpo": dr_grpo, "gspo": gspo, "cispo": cispo}
