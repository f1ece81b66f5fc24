"""Policy-gradient losses as pure functions on right-padded tensors.

An update's loss is a mean over its groups, and every group weighs the same in it whatever the
number and length of its completions: within a group it is the mean that the loss's paper takes. A
row brings along its share ``s`` in both means (:func:`share`), so that each loss here is a plain
sum, micro-batches add up to it exactly, and masking a token or giving it a weight of zero never
inflates the others. Where all groups have as many tokens, that equals DAPO's mean over all tokens
(arXiv:2503.14476), which elsewhere lets a group of long completions outvote the others.

With ``u = exp(cur - prox)``, ``A`` the advantage, ``m`` the mask and ``w`` the weight of a token.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from node.learner.plausibility import plausibility


@dataclass(frozen=True, slots=True)
class Terms:
    """What a loss is made of. Log-probs are of the distribution sampled from, after temperature.

    Attributes:
        cur: float32 ``[B, T]``, log-probs of the sampled tokens under the current policy.
        prox: float32 ``[B, T]``, the same under the policy frozen when the update began.
        advantages: float32 ``[B]``.
        mask: bool ``[B, T]``, true on trained tokens.
        weights: float32 ``[B, T]``, corrects for a behaviour policy other than ``prox``.
        shares: float32 ``[B]``, see :func:`share`.
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


NEGLIGIBLE = 1e-6
"""Weights below it would fill the backward pass with denormal numbers, of which each takes a
processor a hundred times as long as another one: text made for that would stop a node."""

Loss = Callable[[Terms, Clip], Tensor]


def share(loss: str, counts: Counts, groups: int) -> float:
    """What one token of a group (with ``"gspo"`` one row) counts in an update of ``groups``.

    The group is averaged over its trained tokens (``"grpo"``, ``"cispo"``), its rows (``"gspo"``)
    or the constant ``rows * cap`` (``"dr_grpo"``).
    """
    within = {
        "grpo": counts.tokens,
        "cispo": counts.tokens,
        "gspo": counts.rows,
        "dr_grpo": counts.rows * counts.cap,
    }
    return 1.0 / (max(1, within[loss]) * groups)


def grpo(terms: Terms, clip: Clip) -> Tensor:
    """``sum s m w max(-A u, -A clip(u))``, a scalar; a mean over each group's tokens.

    GRPO (arXiv:2402.03300) with DAPO's asymmetric clip (arXiv:2503.14476), whose token mean is
    taken within groups, and the decoupled weight of AReaL (arXiv:2505.24298).
    """
    return _clipped_sum(terms, clip)


def dr_grpo(terms: Terms, clip: Clip) -> Tensor:
    """GRPO's sum, each group's over its constant ``rows * cap``, free of length bias; a scalar.

    From arXiv:2503.20783, whose advantages are not divided by the standard deviation either.
    """
    return _clipped_sum(terms, clip)


def gspo(terms: Terms, clip: Clip) -> Tensor:
    """``sum_i s_i w_i max(-A r, -A clip(r))`` with ``r = exp(mean_t(cur - prox))``, a scalar.

    One ratio a sequence (arXiv:2507.18071), whose clip range is far tighter than a token's: 3e-4
    and 4e-4 in the paper. ``w_i`` is the mean weight of the row.
    """
    length = terms.mask.sum(-1).clamp(min=1)
    ratio = (_masked(terms.cur - terms.prox, terms.mask).sum(-1) / length).exp()
    weight = _masked(terms.weights, terms.mask).sum(-1) / length
    return (terms.shares * weight * _pessimistic(ratio, terms.advantages, clip)).sum()


def cispo(terms: Terms, clip: Clip) -> Tensor:
    """``sum s m w (-A sg(min(u, 1 + high)) cur)``, a scalar; a mean over each group's tokens.

    The ratio is clipped and no token loses its gradient (arXiv:2506.13585, which leaves the
    lower bound open).
    """
    bounded = (terms.cur - terms.prox).exp().clamp(max=1 + clip.high).detach()
    tokens = -terms.weights * bounded * terms.advantages[:, None] * terms.cur
    return (_masked(tokens, terms.mask).sum(-1) * terms.shares).sum()


def tis_weights(prox: Tensor, mu: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weights ``min(exp(prox - mu), cap)``, one where masked out.

    ``mu`` is the behaviour policy's log-prob. All ``[B, T]``; the result carries no gradient.
    Token-level truncation as in DART (arXiv:2509.23866).
    """
    return torch.where(mask, (prox - mu).exp().clamp(max=cap), 1.0).detach()


def tapered_weights(
    prox: Tensor, entropies: Tensor, mu: Tensor, known: Tensor, mask: Tensor, advantages: Tensor
) -> Tensor:
    """Plausibility where ``A > 0``, else ``exp(min(0, sum_t(prox - mu), sum_t(prox + H)))``.

    After Tapered Off-Policy REINFORCE (arXiv:2503.14286). A stronger author's right answers are
    learned however improbable they are here as a whole, which importance weights would keep from
    happening; its wrong ones count only as far as this policy would write them, since pushing down
    what is improbable already moves the probability anywhere.

    How far that is, ``mu`` tells, which is its author's word: one who claims to have found its text
    improbable would have it weigh in full. So the text is also compared with what this policy
    would have written, whose log-prob is ``-H`` at the mean, and the lower of the two counts: no
    claim raises a weight. Of a right answer each token is compared so, with some nats to spare
    (:func:`node.learner.plausibility.plausibility`), or a phrase put in front of it would be
    learned.

    All ``[B, T]``. A weight below ``NEGLIGIBLE`` is zero. One where masked out; no gradient.

    Args:
        entropies: ``H``, ``[B, T]``, of the policy of ``prox`` at each token, nats.
        known: bool ``[B, 1]``, rows whose ``mu`` is claimed.
    """
    claimed = _masked(prox - mu, mask & known).sum(-1, keepdim=True)
    expected = _masked(prox + entropies, mask).sum(-1, keepdim=True)
    wrong = torch.minimum(claimed, expected).clamp(max=0.0).exp()
    weights = torch.where((advantages < 0)[:, None], wrong, plausibility(prox, entropies))
    return torch.where(mask, _masked(weights, weights >= NEGLIGIBLE), 1.0).detach()


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
    return (_masked(tokens, terms.mask).sum(-1) * terms.shares).sum()


def _pessimistic(ratio: Tensor, advantages: Tensor, clip: Clip) -> Tensor:
    bounded = ratio.clamp(1 - clip.low, 1 + clip.high)
    return torch.maximum(-advantages * ratio, -advantages * bounded)


def _masked(values: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask, values, 0.0)


LOSSES: dict[str, Loss] = {"grpo": grpo, "dr_grpo": dr_grpo, "gspo": gspo, "cispo": cispo}
