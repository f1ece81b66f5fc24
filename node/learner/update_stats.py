"""What an update reports, and the sums it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from node.learner.batches import MicroBatch
from node.learner.losses import Loss, Terms

UNKNOWN = -1
QUANTILES = (0.01, 0.5, 0.99)


@dataclass(frozen=True, slots=True)
class UpdateStats:
    """What one update did; means are over the trained tokens of informative groups.

    A figure that nothing was measured for is None; what is counted is 0 then.

    Attributes:
        loss: of the first epoch, before its steps, at their mean.
        grad_norm: likewise, before clipping.
        entropy: of the policy, nats a token.
        clip_fraction: share of the loss's terms whose ratio to the proximal policy left the trust
            region, over all epochs: tokens, or completions where a loss has one ratio for each.
        ratio_mean: of the policy's probability to the behaviour's, on own tokens where the latter
            is known.
        ratio_max: its largest value.
        ratio_low, ratio_median, ratio_high: its quantiles 0.01, 0.5 and 0.99.
        masked_fraction: share of the same that were dropped for their weight, over all epochs.
        staleness: own tokens by the policy steps since they were sampled, from 0 up.
        engine_gap: mean ``|cur - mu|`` on own tokens of the version that was updated: how far the
            engine's log-probs are from the learner's at equal weights. Of the update's groups, or
            else of what the engine wrote last (:mod:`node.learner.steps`).
        tokens_trained: tokens with a gradient.
        groups_informative: groups whose rewards differ.
        largest_share: of one external group in the sum of all groups' gradient norms, in the first
            epoch, after scaling: see :mod:`node.learner.gradient_bound`.
        groups_bounded: external groups whose gradient was scaled down there.
        unlikely: external completions that were not imitated for their likelihood, see
            :func:`node.learner.off_policy.unlikely`.
        useful: of each external group given, in order,
            :func:`node.learner.off_policy.usefulness`; 0 of one without advantage.
        entropies: of each own group given, in order, and each of its completions: the policy's
            entropy before the first step at every token read, nats; empty where none was.
        lr: of the last step.
        skipped: no optimizer step was made.
        refused: steps refused because loss or gradient was not finite.
        halved: how often micro-batches were made smaller because memory ran out.
    """

    loss: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None
    clip_fraction: float | None = None
    ratio_mean: float | None = None
    ratio_max: float | None = None
    ratio_low: float | None = None
    ratio_median: float | None = None
    ratio_high: float | None = None
    masked_fraction: float | None = None
    staleness: tuple[int, ...] = ()
    engine_gap: float | None = None
    tokens_trained: int = 0
    groups_informative: int = 0
    largest_share: float | None = None
    groups_bounded: int = 0
    unlikely: int = 0
    useful: tuple[float, ...] = ()
    entropies: tuple[tuple[tuple[float, ...], ...], ...] = field(default=(), repr=False)
    lr: float = 0.0
    skipped: bool = True
    refused: int = 0
    halved: int = 0


class Tally:
    """Sums over micro-batches, kept on the device and read once."""

    def __init__(self) -> None:
        self._sums: list[Tensor] = []
        self._bounded: list[Tensor] = []
        self._ratios: list[Tensor] = []
        self._ages: list[Tensor] = []
        self._unlikely: list[Tensor] = []
        self._plausible: list[Tensor] = []
        self._entropies: list[Tensor] = []

    def add(self, other: Tally) -> None:
        """Take what another has summed."""
        self._sums += other._sums
        self._bounded += other._bounded
        self._ratios += other._ratios
        self._ages += other._ages
        self._unlikely += other._unlikely
        self._plausible += other._plausible
        self._entropies += other._entropies

    def on(self, device: str) -> Tally:
        """The same sums on another device."""
        moved = Tally()
        for name, tensors in vars(self).items():
            setattr(moved, name, [tensor.to(device) for tensor in tensors])
        return moved

    def add_behaviour(self, cur: Tensor, entropy: Tensor, batch: MicroBatch, version: int) -> None:
        """Take a micro-batch's log-probs ``[C, T]`` and the policy's version before a step."""
        # What strangers claim would otherwise be the largest figure of all.
        known = own = batch.mask & batch.known & batch.own
        age = torch.where(own & (batch.versions >= 0), version - batch.versions, UNKNOWN)
        own = own & ((age == 0) | (batch.versions < 0))
        gap = torch.where(known, cur - batch.behaviour, 0.0)
        told = batch.mask & batch.own
        numbers = entropy.new_tensor(batch.numbers)[:, None].expand_as(entropy)
        self._entropies.append(torch.stack([numbers[told], entropy[told]], -1))
        self._ratios.append(gap.exp().where(known, UNKNOWN).flatten())
        self._ages.append(age.flatten())
        self._sums.append(
            torch.stack(
                [
                    batch.mask.sum(),
                    torch.where(batch.mask, entropy, 0.0).sum(),
                    own.sum(),
                    torch.where(own, gap.abs(), 0.0).sum(),
                ]
            )
        )

    def add_bounded(self, loss: Loss, terms: Terms) -> None:
        """Take what a micro-batch's loss was made of, in any epoch."""
        log_ratio, trained = loss.per_term(terms.cur.detach() - terms.prox, terms.mask)
        weights, _ = loss.per_term(terms.weights, terms.mask)
        left = loss.leaves(log_ratio.exp())
        seen = torch.stack([left & trained, (weights == 0) & trained, trained])
        self._bounded.append(seen.flatten(1).sum(1))

    def add_unlikely(self, unlikely: Tensor) -> None:
        """Take which of a micro-batch's completions were not imitated, bool ``[C]``."""
        self._unlikely.append(unlikely.sum())

    def add_plausible(self, plausibility: Tensor, batch: MicroBatch) -> None:
        """Take the plausibility ``[C, T]`` of what a micro-batch would have this node imitate."""
        imitated = batch.mask & ~batch.own & (batch.advantages > 0)[:, None]
        numbers = plausibility.new_tensor(batch.numbers)
        totals = torch.where(imitated, plausibility, 0.0).sum(-1)
        self._plausible.append(torch.stack([numbers, totals, imitated.sum(-1)], -1))

    def plausible(self) -> dict[int, tuple[float, float]]:
        """By completion, over tokens to be imitated: sum of plausibilities, and number."""
        rows = torch.cat(self._plausible).tolist() if self._plausible else []
        return {int(number): (total, count) for number, total, count in rows}

    def entropies(self) -> dict[int, tuple[float, ...]]:
        """By own completion, of every trained token in order, nats."""
        found: dict[int, list[float]] = {}
        for number, entropy in torch.cat(self._entropies).tolist() if self._entropies else []:
            found.setdefault(int(number), []).append(entropy)
        return {number: tuple(values) for number, values in found.items()}

    def stats(self, gap_beside: float | None = None) -> UpdateStats:
        """Read the sums; the other figures are the learner's.

        Args:
            gap_beside: the engine's gap on other text, told where no token here tells one.
        """
        tokens, entropy, own, gap = torch.stack(self._sums).sum(0).tolist()
        clipped, masked, looked_at = torch.stack(self._bounded).sum(0).tolist()
        unlikely = torch.stack(self._unlikely).sum().item()
        mean, top, low, median, high = _spread(_known(self._ratios))
        return UpdateStats(
            entropy=entropy / tokens,
            clip_fraction=clipped / looked_at,
            ratio_mean=mean,
            ratio_max=top,
            ratio_low=low,
            ratio_median=median,
            ratio_high=high,
            masked_fraction=masked / looked_at,
            staleness=tuple(np.bincount(_known(self._ages)).tolist()),
            engine_gap=gap / own if own else gap_beside,
            tokens_trained=int(tokens),
            unlikely=int(unlikely),
        )


def _spread(ratios: NDArray[Any]) -> Sequence[float | None]:
    """Mean, largest and the quantiles of some ratios; five times None of none."""
    if not len(ratios):
        return (None,) * 5
    quantiles = np.quantile(ratios, QUANTILES)
    return [float(each) for each in (ratios.mean(dtype=np.float64), ratios.max(), *quantiles)]


def _known(values: Sequence[Tensor]) -> NDArray[Any]:
    """All of the values that are known."""
    together: NDArray[Any] = torch.cat(list(values)).cpu().numpy()
    known: NDArray[Any] = together[together != UNKNOWN]
    return known
