"""Own tokens that earlier versions of the policy wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from node.learner.batches import TrainingGroup
from node.learner.loss import masked


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


def decoupled_weights(prox: Tensor, mu: Tensor, mask: Tensor, stale: Stale) -> Tensor:
    """``w = exp(prox - mu)``, bounded by ``stale``; one where masked out, and no gradient.

    The importance weight of AReaL's decoupled objective (arXiv:2505.24298): it corrects for who
    sampled a token, and leaves to the ratio's clip how far the update may go. All ``[B, T]``. A
    weight of zero drops the token and leaves every denominator as it is.
    """
    drift = prox - mu
    if stale.treat == "mask_sequences":
        length = mask.sum(-1, keepdim=True).clamp(min=1)
        drift = (masked(drift, mask).sum(-1, keepdim=True) / length).expand_as(prox)
    weights = drift.exp()
    if stale.treat == "clamp":
        weights = weights.clamp(max=stale.cap)
    else:
        weights = masked(weights, weights <= stale.cap)
    return torch.where(mask, weights, 1.0).detach()


@dataclass(frozen=True, slots=True)
class Span:
    """The versions of the policy that an update leads from and to.

    Attributes:
        version: before it.
        steps: that it is to make, each of which counts the version up.
    """

    version: int
    steps: int


def interpolated_prox(cur: Tensor, mu: Tensor, versions: Tensor, span: Span) -> Tensor:
    """``mu + alpha (cur - mu)``: proximal log-probs of own tokens told by their age; ``[B, T]``.

    AReaL's approximation without a forward pass of the proximal policy. An update of ``k`` steps
    makes version ``v + k`` of version ``v``, and ``alpha = (v - v_mu) / (v + k - v_mu)`` is how far
    along the way from a token's version to the new one the proximal policy lies: 0 for what it
    wrote itself, a half for what the one before the last update wrote.

    Args:
        cur: log-probs when the update begins.
        versions: int64 ``[B, T]``, the policy's version that each token was sampled under.
        span: ``v``, which none of ``versions`` is above, and ``k``.
    """
    age = span.version - versions
    return torch.lerp(mu, cur, age / (age + span.steps)).detach()


def check_versions(groups: Sequence[TrainingGroup], version: int) -> None:
    """Refuse what no policy can have written yet.

    Raises:
        ValueError: a token is of a later version than ``version``.
    """
    latest = max((v for g in groups for c in g.completions for v in c.versions or ()), default=0)
    if latest > version:
        raise ValueError(
            f"a group has tokens of version {latest} of the policy, which is at {version}"
        )
