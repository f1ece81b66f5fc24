"""Gradient of an update in which the share of each peer's group is bounded."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

import torch
from torch import Tensor

from node.learner.batches import Row
from node.learner.group_gradients import GradientSum, GroupGradients, fits
from node.learner.off_policy import usefulness
from node.learner.optimizer import Optimizer
from node.learner.update_stats import UpdateSums

log = logging.getLogger(__name__)

MOST_SHARES = 2.0  # Maximum share of one group, relative to an even division.
ROUNDING = 1e-9
FAR_ABOVE = 3.0  # Multiple of the mean norm so far, above which scaling is likely.


def bound(own: float, external: Sequence[float], groups: float) -> float:
    """Return the norm to scale peers' groups down to; infinity if none is larger.

    It is the largest ``t`` with ``t <= 2 / groups * (own + sum_i min(external_i, t))``. ``own`` is
    the sum of the local groups' norms.
    """
    share = MOST_SHARES / groups
    ordered = sorted(external, reverse=True)
    scaled, left = 0, own + math.fsum(ordered)
    while True:
        # With the `scaled` largest at t, t = share * (left + scaled * t).
        unshared = 1.0 - share * scaled
        smallest = ordered[scaled - 1] if scaled else math.inf
        level = share * left / unshared if unshared > ROUNDING else smallest
        rest = ordered[scaled:]
        if not rest or rest[0] <= level * (1 + ROUNDING):
            return level if scaled else math.inf
        scaled, left = scaled + 1, own + math.fsum(rest[1:])


@dataclass(frozen=True, slots=True)
class Influence:
    """Influence of peers' groups on a step.

    ``largest_share`` is the maximum of one group in the sum of gradient norms, after scaling.
    ``bounded`` counts groups scaled down, or omitted because of a non-finite gradient.
    """

    largest_share: float | None = None
    bounded: int = 0


class GroupNorms:
    """Norms of the groups' gradients in one pass over a step's rows."""

    def __init__(self, groups: float) -> None:
        self._groups = groups
        self._weights: dict[int, float] = {}
        self._own: list[float] = []
        self._outside: dict[int, float] = {}
        self._held: set[int] = set()
        self._broken = 0

    def take(self, number: int, norm: float, *, own: bool, weight: float = 1.0) -> float:
        """Record a group's gradient norm; return the factor to add its gradient with now.

        Local groups come first. A peer's gradient far above the others is computed again after
        scaling: a difference of large numbers would leave rounding errors.
        """
        if own:
            self._own.append(norm)
            return 1.0
        if not math.isfinite(norm):
            log.warning("group %d of the update is left out: its gradient is not finite", number)
            self._broken += 1
            return 0.0
        before = [*self._own, *self._outside.values()]
        self._weights[number] = weight
        self._outside[number] = norm = norm * weight
        if before and norm <= FAR_ABOVE * math.fsum(before) / len(before):
            return weight
        self._held.add(number)
        return 0.0

    def measured(self, number: int) -> bool:
        """Return whether a peer's group has a finite gradient."""
        return number in self._outside

    def scales(self) -> dict[int, float]:
        """Return by number the scales of peers' gradients."""
        level = self._level
        return {
            number: self._weights[number] * (min(1.0, level / norm) if norm > 0 else 1.0)
            for number, norm in self._outside.items()
        }

    def missing(self) -> dict[int, float]:
        """Return by number the factors of peers' gradients that the update still lacks."""
        added = {n: 0.0 if n in self._held else weight for n, weight in self._weights.items()}
        factors = {number: scale - added[number] for number, scale in self.scales().items()}
        return {number: factor for number, factor in factors.items() if factor}

    def influence(self) -> Influence:
        level = self._level
        scaled = [min(norm, level) for norm in self._outside.values()]
        total = math.fsum(self._own) + math.fsum(scaled)
        return Influence(
            max(scaled) / total if scaled and total > 0 else None,
            sum(norm > level for norm in self._outside.values()) + self._broken,
        )

    @property
    def _level(self) -> float:
        return bound(math.fsum(self._own), [*self._outside.values()], self._groups)


class AddGradient(Protocol):
    """Function that adds ``factor`` times the gradient of rows and returns their loss."""

    def __call__(
        self,
        rows: Sequence[Row],
        frozen: dict[int, Tensor],
        tally: UpdateSums,
        factor: float = 1.0,
        apart: GroupGradients | None = None,
    ) -> Tensor: ...


@dataclass(eq=False)
class BoundedGradient:
    """Gradient of an update; peers' groups are weighted and bounded in it.

    Small models read all groups in one pass, others one group at a time. ``summed`` sums a scalar
    over all processes that hold a part of the weights. ``by_use`` weighs peers' groups by
    usefulness. ``fits_together`` says whether gradients may be held together.
    """

    model: torch.nn.Module
    optimizer: Optimizer
    add_gradient: AddGradient
    summed: Callable[[Tensor], Tensor]
    _: KW_ONLY
    by_use: bool
    fits_together: Callable[[Sequence[Row]], bool]

    def __post_init__(self) -> None:
        self._small = True
        self._checked = False

    def add(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence]:
        """Add the gradient of all rows; return the loss, a scalar, and peers' influence.

        ``frozen`` holds by completion what the first pass over these rows fixes for later ones.
        """
        if all(row.own for row in rows):
            return self.add_gradient(rows, frozen, tally), Influence()
        together = None
        if self._small and self.fits_together(rows) and fits([*self.model.parameters()], len(rows)):
            together = self._together(rows, frozen, tally, groups)
        return together or self._one_by_one(rows, frozen, tally, groups)

    def _together(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence] | None:
        """Add all rows in one pass; return None and add nothing if that is impossible."""
        fixed, sums = dict(frozen), UpdateSums()
        with GroupGradients(self.model, [row.group for row in rows]) as apart:
            loss = self.add_gradient(rows, fixed, sums, apart=apart)
        if not (self._checked or apart.complete):
            self._small = False
            log.info("groups are read one by one: this model has weights that no hook listens to")
        values = apart.norms() if self._small else []
        if not values or not all(map(math.isfinite, values)):
            self.optimizer.discard()
            return None
        self._checked = True
        norms, weights = GroupNorms(groups), self._weights(rows, sums)
        for row, norm in zip(rows, values, strict=True):
            norms.take(row.group, norm, own=row.own, weight=weights.get(row.group, 1.0))
        scales = norms.scales()
        if min(scales.values()) < 1.0:
            apart.weigh([scales.get(row.group, 1.0) for row in rows])
        frozen.update(fixed)
        tally.add(sums)
        return loss, norms.influence()

    def _one_by_one(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence]:
        parts, norms = GradientSum(self.optimizer.masters, self.summed), GroupNorms(groups)
        losses = []
        for row in sorted(rows, key=lambda row: not row.own):
            sums = UpdateSums()
            loss = self.add_gradient([row], frozen, sums)
            tally.add(sums)
            weight = self._weights([row], sums).get(row.group, 1.0)
            factor = norms.take(row.group, parts.norm(), own=row.own, weight=weight)
            if row.own or norms.measured(row.group):
                losses.append(loss)
            if factor:
                parts.keep(factor)
            else:
                parts.drop()
        missing = norms.missing()
        for row in rows:
            if factor := missing.get(row.group, 0.0):
                self.add_gradient([row], dict(frozen), UpdateSums(), factor)
                parts.keep()
        parts.hand_over()
        return torch.stack(losses or [torch.zeros_like(loss)]).sum(), norms.influence()

    def _weights(self, rows: Sequence[Row], sums: UpdateSums) -> Mapping[int, float]:
        return usefulness(rows, sums.plausible()) if self.by_use else {}
