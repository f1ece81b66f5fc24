"""Policy-gradient losses as pure functions on right-padded tensors.

Each loss is a sum over tokens or rows divided by counts of the whole update, passed in, so that
micro-batches add up to it exactly and masking a token never inflates the others. With
``u = exp(cur - prox)``, ``A`` the advantage, ``m`` the mask and ``w`` the weight of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

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


@dataclass(frozen=True, slots=True)
class Stale:
    """What becomes of own tokens that the policy has moved away from since it wrote them.

    Attributes:
        treat: of a weight above ``cap``: ``"mask_tokens"`` drops the token, ``"clamp"`` weighs it
            by the cap; ``"mask_sequences"`` gives every token of a completion the geometric mean
            of their weights, and drops them all where that is above.
        cap: upper bound of a weight.
    """

    treat: Literal["mask_tokens", "mask_sequences", "clamp"] = "mask_tokens"
    cap: float = 5.0


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


def decoupled_weights(prox: Tensor, mu: Tensor, mask: Tensor, stale: Stale) -> Tensor:
    """``w = exp(prox - mu)``, bounded by ``stale``; one where masked out, and no gradient.

    The importance weight of AReaL's decoupled objective (arXiv:2505.24298): it corrects for who
    sampled a token, and leaves to the ratio's clip how far the update may go. All ``[B, T]``. A
    weight of zero drops the token and leaves every denominator as it is.
    """
    drift = prox - mu
    if stale.treat == "mask_sequences":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        drift = (_masked(drift, mask).sum(-1, keepdim=True) / length).expand_as(prox)
    weights = drift.exp()
    if stale.treat == "clamp":
        weights = weights.clamp(max=stale.cap)
    else:
        weights = _masked(weights, weights <= stale.cap)
    return torch.where(mask, weights, 1.0).detach()


def interpolated_prox(cur: Tensor, mu: Tensor, versions: Tensor, version: int) -> Tensor:
    """``mu + alpha (cur - mu)``: proximal log-probs of own tokens told by their age; ``[B, T]``.

    AReaL's approximation without a forward pass of the proximal policy. An update makes version
    ``v + 1`` of version ``v``, and ``alpha = (v - v_mu) / (v + 1 - v_mu)`` is how far along the way
    from a token's version to the new one the proximal policy lies: 0 for what it wrote itself.

    Args:
        cur: log-probs when the update begins.
        versions: int64 ``[B, T]``, the policy's version that each token was sampled under.
        version: ``v``.
    """
    age = (version - versions).clamp(min=0)
    return torch.lerp(mu, cur, age / (age + 1)).detach()


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
