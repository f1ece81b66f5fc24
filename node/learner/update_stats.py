"""Statistics of an update and the sums they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.learner.batches import MicroBatch
from node.learner.losses import Loss, Terms, bounded
from node.learner.peer_bound import gained, imitated

UNKNOWN = -1
QUANTILES = (0.01, 0.5, 0.99)


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """Statistics of one update.

    Means are over the trained tokens of informative groups; loss and gradient norm are those of the
    first epoch, before each step and before clipping. A figure without measurement is None; a count
    is 0 then. Ratios are of policy to behavior probability, on local tokens with known behavior,
    within ``exp`` of :data:`node.learner.losses.MAX_LOG_RATIO`.
    """

    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None  # of the policy, nats per token
    clip_fraction: float | None = None  # of terms whose ratio left the trust region, all epochs
    ratio_max: float | None = None
    ratio_low: float | None = None  # quantiles 0.01, 0.5 and 0.99
    ratio_median: float | None = None
    ratio_high: float | None = None
    masked_fraction: float | None = None  # of terms with weight zero, all epochs
    staleness: tuple[int, ...] = ()  # local tokens by policy steps since sampling, from 0 up
    logprob_mismatch: float | None = None  # mean ``|cur - mu|`` on local tokens, nats
    tokens_trained: int = 0
    groups_informative: int = 0
    largest_share: float | None = None  # see :mod:`node.learner.gradient_bound`
    groups_bounded: int = 0  # peers' groups whose gradient was scaled down there
    unlikely: int = 0  # peers' completions not imitated, see :func:`off_policy.unlikely`
    at_bound: float | None = None  # fraction of peers' tokens, see :mod:`node.learner.peer_bound`
    useful: tuple[float, ...] = ()  # of each peer's group, see :func:`off_policy.usefulness`
    # By local group and completion: entropy before the first step per token read, nats.
    entropies: tuple[tuple[tuple[float, ...], ...], ...] = field(default=(), repr=False)
    lr: float = 0.0
    skipped: bool = True  # whether no optimizer step was made
    refused: int = 0  # steps whose loss or gradient was not finite
    tokens_read: tuple[int, ...] = ()  # of each group, with its prompt; empty without a step
    halved: int = 0  # how often micro-batches became smaller because memory ran out


class UpdateSums:
    """Sums over micro-batches, kept on the device and read once."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._bounded: list[Tensor] = []
        self._ratios: list[Tensor] = []
        self._ages: list[Tensor] = []
        self._unlikely: list[Tensor] = []
        self._at_bound: list[Tensor] = []
        self._gained: list[Tensor] = []
        self._plausible: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def add(self, other: UpdateSums) -> None:
        for name, tensors in vars(other).items():
            vars(self)[name] += tensors

    def on(self, device: str) -> UpdateSums:
        sums = UpdateSums()
        for name, tensors in vars(self).items():
            setattr(sums, name, [tensor.to(device) for tensor in tensors])
        return sums

    def add_behaviour(self, cur: Tensor, entropy: Tensor, batch: MicroBatch, version: int) -> None:
        """Add a micro-batch's log-probs and entropies ``[C, T]`` before a step."""
        # Local tokens only: claims of unknown peers would dominate the figures.
        known = current = batch.mask & batch.known & batch.local
        age = torch.where(current & (batch.versions >= 0), version - batch.versions, UNKNOWN)
        current = current & ((age == 0) | (batch.versions < 0))
        log_ratio = torch.where(known, bounded(cur - batch.behaviour), 0.0)
        local = batch.mask & batch.local
        numbers = batch.numbered[:, None].expand_as(entropy)
        # All of them, because to select some waits for the device.
        self._entropies.append(torch.stack([numbers, entropy, local], -1).flatten(0, 1))
        self._ratios.append(log_ratio.exp().where(known, UNKNOWN).flatten())
        self._ages.append(age.flatten())
        entropy_sum = torch.where(batch.mask, entropy, 0.0).sum()
        mismatch = torch.where(current, log_ratio.abs(), 0.0).sum()
        self._sums.append(torch.stack([batch.mask.sum(), entropy_sum, current.sum(), mismatch]))

    def add_bounded(self, loss: Loss, terms: Terms) -> None:
        """Add the clipped and masked terms of a micro-batch's loss, in any epoch."""
        log_ratio, trained = loss.per_term(terms.cur.detach() - terms.prox, terms.mask)
        weights, _ = loss.per_term(terms.weights, terms.mask)
        outside = loss.leaves(bounded(log_ratio).exp())
        masks = torch.stack([outside & trained, (weights == 0) & trained, trained])
        self._bounded.append(masks.flatten(1).sum(1))

    def add_unlikely(self, unlikely: Tensor) -> None:
        """Count completions that were not imitated, bool ``[C]``."""
        self._unlikely.append(unlikely.sum())

    def add_reference(self, reached: Tensor, prox: Tensor, batch: MicroBatch) -> None:
        """Add peers' tokens at their bound, bool ``[C, T]``, and what local answers gained."""
        self._at_bound.append(torch.stack([reached.sum(), imitated(batch).sum()]))
        self._gained.append(gained(prox, batch))

    def gained(self) -> tuple[float, float]:
        """Return the log-ratio to the reference over local better answers, and their tokens."""
        return _total(self._gained)

    def add_plausible(self, plausibility: Tensor, batch: MicroBatch) -> None:
        """Add the plausibility ``[C, T]`` of a micro-batch's tokens to be imitated."""
        better = batch.mask & ~batch.local & (batch.advantages > 0)[:, None]
        totals = torch.where(better, plausibility, 0.0).sum(-1)
        self._plausible.append(torch.stack([batch.numbered, totals, better.sum(-1)], -1))

    def plausible(self) -> dict[int, tuple[float, float]]:
        """Return by completion, over tokens to be imitated: sum of plausibilities, count."""
        rows = torch.cat(self._plausible).tolist() if self._plausible else []
        return {int(number): (total, count) for number, total, count in rows}

    def entropies(self) -> dict[int, tuple[float, ...]]:
        """Return by local completion the entropy of every trained token in order, nats."""
        by_number: dict[int, list[float]] = {}
        rows = torch.cat(self._entropies).cpu() if self._entropies else torch.empty(0, 3)
        for number, entropy, _ in rows[rows[:, 2] > 0].tolist():
            by_number.setdefault(int(number), []).append(entropy)
        return {number: tuple(values) for number, values in by_number.items()}

    def stats(self, gap_beside: float | None = None) -> UpdateStats:
        """Compute the figures; ``gap_beside`` is the mismatch if no token here shows it."""
        tokens, entropy, current, mismatch = torch.stack(self._sums).sum(0).tolist()
        clipped, masked, terms = torch.stack(self._bounded).sum(0).tolist()
        unlikely = torch.stack(self._unlikely).sum().item()
        reached, imitated_tokens = _total(self._at_bound)
        top, low, median, high = _spread(_known(self._ratios))
        return UpdateStats(
            entropy=entropy / tokens,
            clip_fraction=clipped / terms,
            ratio_max=top,
            ratio_low=low,
            ratio_median=median,
            ratio_high=high,
            masked_fraction=masked / terms,
            staleness=tuple(np.bincount(_known(self._ages)).tolist()),
            logprob_mismatch=mismatch / current if current else gap_beside,
            tokens_trained=int(tokens),
            unlikely=int(unlikely),
            at_bound=reached / imitated_tokens if imitated_tokens else None,
        )


def _total(pairs: Sequence[Tensor]) -> tuple[float, float]:
    first, second = torch.stack(list(pairs)).sum(0).tolist() if pairs else (0.0, 0.0)
    return first, second


def _spread(ratios: NDArray[Any]) -> Sequence[float | None]:
    if not len(ratios):
        return (None,) * 4
    return [float(each) for each in (ratios.max(), *np.quantile(ratios, QUANTILES))]


def _known(values: Sequence[Tensor]) -> NDArray[Any]:
    combined: NDArray[Any] = torch.cat(list(values)).cpu().numpy()
    known: NDArray[Any] = combined[combined != UNKNOWN]
    return known
