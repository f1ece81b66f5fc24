"""Gradient of an update in which the share of each peer's group is bounded.

That takes the norm of each group's gradient. There are three ways to get it, the fastest first:

1. Small models: one pass holds the gradients of all groups (:mod:`node.learner.group_gradients`).
2. One pass over each micro-batch measures the norms and adds the gradients
   (:mod:`node.learner.group_norms`). Few groups turn out to need scaling; those are read again.
3. Each group has a pass of its own, for models whose weights the others cannot measure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from node.learner.batches import Row
from node.learner.group_gradients import GradientSum, GroupGradients, gradients_fit
from node.learner.group_norms import GroupNorms
from node.learner.off_policy import usefulness
from node.learner.update_stats import UpdateSums

if TYPE_CHECKING:
    from node.learner.learner import Learner

log = logging.getLogger(__name__)

MOST_SHARES = 2.0  # Maximum share of one group, relative to an even division.
ROUNDING = 1e-9
FAR_ABOVE = 3.0  # Multiple of the mean norm so far, above which scaling is likely.
# Values by whether weights are half precision, whose gradients are rounded more.
FAR_ABOVE_IN_BATCH = {False: 300.0, True: 10.0}  # The same in a micro-batch, all read again then.
AGREEMENT = {False: 1e-3, True: 5e-2}  # Relative error of a norm measured in a micro-batch.


def bound(local: float, external: Sequence[float], groups: float) -> float:
    """Return the norm to scale peers' groups down to; infinity if none is larger.

    It is the largest ``t`` with ``t <= 2 / groups * (local + sum_i min(external_i, t))``. ``local``
    is the sum of the local groups' norms.
    """
    share = MOST_SHARES / groups
    ordered = sorted(external, reverse=True)
    scaled, left = 0, local + math.fsum(ordered)
    while True:
        # With the `scaled` largest at t, t = share * (left + scaled * t).
        unshared = 1.0 - share * scaled
        smallest = ordered[scaled - 1] if scaled else math.inf
        level = share * left / unshared if unshared > ROUNDING else smallest
        unscaled = ordered[scaled:]
        if not unscaled or unscaled[0] <= level * (1 + ROUNDING):
            return level if scaled else math.inf
        scaled, left = scaled + 1, local + math.fsum(unscaled[1:])


@dataclass(frozen=True, slots=True)
class Influence:
    """Influence of peers' groups on a step.

    ``largest_share`` is the maximum of one group in the sum of gradient norms, after scaling.
    ``bounded`` counts groups scaled down, or omitted because of a non-finite gradient.
    """

    largest_share: float | None = None
    bounded: int = 0


class GroupScales:
    """Norms of the groups' gradients in a step, and the scales that follow from them."""

    def __init__(self, groups: float) -> None:
        self._groups = groups
        self._own: list[float] = []
        self._external: dict[int, float] = {}  # norms by group number, weights included
        self._weights: dict[int, float] = {}  # by group number
        self._postponed: set[int] = set()  # groups that are not added yet
        self._not_finite = 0

    def record(self, number: int, norm: float, *, local: bool, weight: float = 1.0) -> float:
        """Record the norm of a group's weighted gradient; return the factor to add it with now.

        Local groups come first. A peer's gradient far above the others is computed again after
        scaling: a difference of large numbers would leave rounding errors.
        """
        if local:
            self._own.append(norm)
            return 1.0
        if not math.isfinite(norm):
            log.warning("group %d of the update is skipped: its gradient is not finite", number)
            self._not_finite += 1
            return 0.0
        previous = [*self._own, *self._external.values()]
        self._weights[number], self._external[number] = weight, norm
        if previous and norm <= FAR_ABOVE * math.fsum(previous) / len(previous):
            return weight
        self._postponed.add(number)
        return 0.0

    def record_batch(
        self, rows: Sequence[Row], norms: Sequence[float], weights: Sequence[float], far: float
    ) -> bool:
        """Record norms of groups whose weighted gradients were added in one micro-batch.

        Return False and record none if a peer's is not finite, or ``far`` above the others' mean.
        """
        all_norms = [*self._own, *self._external.values(), *norms]
        total, count = math.fsum(all_norms), len(all_norms) - 1
        for row, norm in zip(rows, norms, strict=True):
            if not (row.local or norm * count <= far * (total - norm)):
                return False
        for row, norm, weight in zip(rows, norms, weights, strict=True):
            if row.local:
                self._own.append(norm)
            else:
                self._weights[row.group], self._external[row.group] = weight, norm
        return True

    def scales(self) -> dict[int, float]:
        """Return by number the scales of peers' gradients."""
        level = self._level
        return {
            number: self._weights[number] * (min(1.0, level / norm) if norm > 0 else 1.0)
            for number, norm in self._external.items()
        }

    def missing(self) -> dict[int, float]:
        """Return by number the factors of peers' gradients that the update still lacks."""
        added = {n: 0.0 if n in self._postponed else weight for n, weight in self._weights.items()}
        factors = {number: scale - added[number] for number, scale in self.scales().items()}
        return {number: factor for number, factor in factors.items() if factor}

    def influence(self) -> Influence:
        level = self._level
        scaled = [min(norm, level) for norm in self._external.values()]
        total = math.fsum(self._own) + math.fsum(scaled)
        return Influence(
            max(scaled) / total if scaled and total > 0 else None,
            sum(norm > level for norm in self._external.values()) + self._not_finite,
        )

    @property
    def _level(self) -> float:
        return bound(math.fsum(self._own), [*self._external.values()], self._groups)


Factors = Callable[[UpdateSums], Mapping[int, float]]
"""From the sums of a micro-batch to factors of its completions' gradients, by number, or 1."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Result of one pass over whole groups.

    ``norms`` has the norm of each group's gradient by number, times the optimizer's scale.
    ``complete`` says whether these gradients add up to the model's gradient.
    """

    loss: Tensor
    norms: Mapping[int, float]
    complete: bool


@dataclass(eq=False)
class BoundedGradient:
    """Gradient of an update; peers' groups are weighted and bounded in it.

    ``summed`` sums a scalar over all processes that hold a part of the weights. ``by_use`` weighs
    peers' groups by usefulness. ``measurable``: norms can be measured in a micro-batch, as far as
    is known; ``checked``: one such norm agreed with a pass over its group alone.
    """

    model: torch.nn.Module
    learner: Learner
    summed: Callable[[Tensor], Tensor]
    _: KW_ONLY
    by_use: bool

    def __post_init__(self) -> None:
        self._holdable = True  # whether every weight has hooks, as far as is known
        self._hold_checked = False
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.measurable = all(type(weight) in (torch.nn.Parameter, DTensor) for weight in weights)
        self.checked = False
        self.half = any(weight.dtype != torch.float32 for weight in weights)
        self.norms = GroupNorms(self.model)

    def add(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence]:
        """Add the gradient of all rows; return the loss, a scalar, and peers' influence.

        ``frozen`` holds by completion what the first pass over these rows fixes for later ones.
        """
        if all(row.local for row in rows):
            return self.learner.add(rows, frozen, tally), Influence()
        result = None
        parameters = [*self.model.parameters()]
        may_hold = self._holdable and self.learner.may_hold(rows)
        if may_hold and gradients_fit(parameters, len(rows)):
            result = self._add_held(rows, frozen, tally, groups)
        while result is None:
            result = self._add_in_turn(rows, frozen, tally, groups)
        return result

    def _add_held(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence] | None:
        """Hold the gradients of all groups; return None and add nothing if that is impossible."""
        fixed, sums = dict(frozen), UpdateSums()
        with GroupGradients(self.model, [row.group for row in rows]) as gradients:
            loss = self.learner.add(rows, fixed, sums, apart=gradients)
        if not (self._hold_checked or gradients.complete):
            self._holdable = False
            log.info("forward passes of one group: this model has weights without hooks")
        norms = gradients.norms() if self._holdable else []
        if not norms or not all(map(math.isfinite, norms)):
            self.learner.optimizer.discard()
            return None
        self._hold_checked = True
        group_norms, weights = GroupScales(groups), self.weights(rows, sums)
        for row, norm in zip(rows, norms, strict=True):
            weight = weights.get(row.group, 1.0)
            group_norms.record(row.group, norm * weight, local=row.local, weight=weight)
        scales = group_norms.scales()
        if min(scales.values()) < 1.0:
            gradients.weigh([scales.get(row.group, 1.0) for row in rows])
        frozen.update(fixed)
        tally.add(sums)
        return loss, group_norms.influence()

    def _add_in_turn(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: UpdateSums, groups: float
    ) -> tuple[Tensor, Influence] | None:
        """Read one micro-batch after the other; return None if norms turn out to be wrong."""
        total = _Accumulation(self, frozen, GroupScales(groups))
        pending = sorted(rows, key=lambda row: (not row.local, row.length))
        while pending:
            count = self.learner.rows_in_batch(pending) if self.measurable else 1
            if count == 1:
                total.add_group(pending.pop(0))
            elif total.add_batch(pending[:count]):
                del pending[:count]
            elif not self.measurable:
                self.learner.optimizer.discard()
                return None
        loss = total.finish(rows)
        frozen.update(total.frozen)
        tally.add(total.tally)
        return loss, total.scales.influence()

    def weights(self, rows: Sequence[Row], sums: UpdateSums) -> Mapping[int, float]:
        """Return the weights of peers' groups by number; 1 for groups that are missing."""
        return usefulness(rows, sums.plausible()) if self.by_use else {}


class _Accumulation:
    """The gradients of a step's rows that were read so far, and what these passes show."""

    def __init__(
        self, gradient: BoundedGradient, frozen: Mapping[int, Tensor], scales: GroupScales
    ) -> None:
        self._of, self._learner = gradient, gradient.learner
        self._sum = GradientSum(gradient.learner.optimizer.masters, gradient.summed)
        self._loss = torch.zeros((), device=next(gradient.model.parameters()).device)
        self.frozen, self.scales, self.tally = dict(frozen), scales, UpdateSums()

    def add_batch(self, rows: Sequence[Row]) -> bool:
        """Add rows of several groups in one micro-batch.

        Return False and add nothing if memory runs out, or if the norms turn out to be wrong.
        """
        frozen, sums, gradient = dict(self.frozen), UpdateSums(), self._of

        def factors(sums: UpdateSums) -> Mapping[int, float]:
            return by_completion(rows, gradient.weights(rows, sums))

        with gradient.norms as group_norms:
            measured = self._learner.add_measured(
                rows, frozen, sums, factors=factors, norms=group_norms
            )
        if measured is None:
            return False
        norms = [measured.norms[row.group] / self._learner.optimizer.scale for row in rows]
        gradient.measurable = measured.complete
        by_group = gradient.weights(rows, sums)
        weights = [by_group.get(row.group, 1.0) for row in rows]
        if not self.scales.record_batch(rows, norms, weights, FAR_ABOVE_IN_BATCH[gradient.half]):
            self._sum.drop()
            for row in rows:
                self.add_group(row)
            return True
        self._sum.keep()
        gradient.measurable = gradient.measurable and self._agrees(rows, norms, weights)
        self.frozen = frozen
        self.tally.add(sums)
        self._loss = self._loss + measured.loss
        return gradient.measurable

    def add_group(self, row: Row) -> None:
        """Add one group, in as many passes as it takes, and measure their sum."""
        sums = UpdateSums()
        loss = self._learner.add([row], self.frozen, sums)
        self.tally.add(sums)
        weight = self._of.weights([row], sums).get(row.group, 1.0)
        norm = weight * self._sum.norm()
        factor = self.scales.record(row.group, norm, local=row.local, weight=weight)
        if row.local or math.isfinite(norm):
            self._loss = self._loss + loss
        if factor:
            self._sum.keep(factor)
        else:
            self._sum.drop()

    def finish(self, rows: Sequence[Row]) -> Tensor:
        """Add what groups still lack, or have too much; return the loss."""
        missing = self.scales.missing()
        if affected := [row for row in rows if row.group in missing]:
            factors = by_completion(affected, missing)
            self._learner.add(affected, dict(self.frozen), UpdateSums(), factors=lambda _: factors)
            self._sum.keep()
        self._sum.hand_over()
        return self._loss

    def _agrees(
        self, rows: Sequence[Row], norms: Sequence[float], weights: Sequence[float]
    ) -> bool:
        """Check the largest norm, once, against a pass over that group alone."""
        largest = max(range(len(rows)), key=norms.__getitem__)
        norm = norms[largest]
        if self._of.checked or not norm:
            return True
        self._learner.add([rows[largest]], dict(self.frozen), UpdateSums())
        single = weights[largest] * self._sum.norm()
        self._sum.drop()
        self._of.checked = abs(norm - single) <= AGREEMENT[self._of.half] * single
        if not self._of.checked:
            log.info("forward passes of one group: in a batch, a norm of %g was %g", single, norm)
        return self._of.checked


def by_completion(rows: Sequence[Row], by_group: Mapping[int, float]) -> dict[int, float]:
    """Return a value for each completion's number from one for each group."""
    return {
        row.first + n: by_group[row.group]
        for row in rows
        if row.group in by_group
        for n in range(len(row.completions))
    }
