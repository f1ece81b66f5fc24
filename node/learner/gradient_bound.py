"""The gradient of an update, in which external groups have no more than is theirs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from node.learner.batches import Row
from node.learner.group_gradients import GradientSum, GroupGradients, fits
from node.learner.off_policy import usefulness
from node.learner.optimizer import Optimizer
from node.learner.update_stats import Tally

log = logging.getLogger(__name__)

MOST_SHARES = 2.0
"""Of an even division among the groups, in one of them."""
ROUNDING = 1e-9
FAR_ABOVE = 3.0
"""Times the mean norm so far, beyond which a group is probably to be scaled."""


def bound(own: float, external: Sequence[float], groups: float) -> float:
    """The largest ``t`` with ``t <= 2 / groups * (own + sum_i min(external_i, t))``.

    Args:
        own: sum of the own groups' norms.
        external: the external groups' norms.
        groups: ``N``.

    Returns:
        What the norm of an external group is scaled down to; infinity where none is too large.
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
    """What external groups had to do with a step.

    Attributes:
        largest_share: of one of them in the sum of the groups' gradient norms, after scaling; None
            where there is no gradient of any.
        bounded: how many were scaled down, or left out since their gradient is not finite.
    """

    largest_share: float | None = None
    bounded: int = 0


class GroupNorms:
    """Norms of the groups' gradients in one pass of a step's rows.

    Args:
        groups: informative ones that the step stands for, ``N``.
    """

    def __init__(self, groups: float) -> None:
        self._groups = groups
        self._weights: dict[int, float] = {}
        self._own: list[float] = []
        self._outside: dict[int, float] = {}
        self._held: set[int] = set()
        self._broken = 0

    def take(self, number: int, norm: float, *, own: bool, weight: float = 1.0) -> float:
        """Note the norm of a group's gradient, own groups first; what times it may be added now.

        An external group counts ``weight`` times, and so does its norm. One far above the others is
        not added before it is scaled: the difference of large numbers would leave their rounding
        behind. It is computed again in the end.
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
        """Whether an external group's gradient is finite."""
        return number in self._outside

    def scales(self) -> dict[int, float]:
        """By their number, what external groups' gradients are scaled by."""
        level = self._level
        return {
            number: self._weights[number] * (min(1.0, level / norm) if norm > 0 else 1.0)
            for number, norm in self._outside.items()
        }

    def missing(self) -> dict[int, float]:
        """By their number, what times external groups' gradients the update still lacks."""
        added = {n: 0.0 if n in self._held else weight for n, weight in self._weights.items()}
        factors = {number: scale - added[number] for number, scale in self.scales().items()}
        return {number: factor for number, factor in factors.items() if factor}

    def influence(self) -> Influence:
        """Of all external groups."""
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


class Adding(Protocol):
    """Adds ``factor`` times the gradient of rows to the weights', and returns their loss."""

    def __call__(
        self,
        rows: Sequence[Row],
        frozen: dict[int, Tensor],
        tally: Tally,
        factor: float = 1.0,
        apart: GroupGradients | None = None,
    ) -> Tensor: ...


class BoundedGradient:
    """Adds up an update's gradient: own groups' as they are, external ones' weighed and bounded.

    Small models are read in one pass (:mod:`node.learner.group_gradients`), others group by group.

    Args:
        model: whose weights the gradient is of.
        optimizer: of these weights.
        add: reads rows.
        summed: sums a scalar over all that hold a part of the weights.
        by_use: external groups count as far as they are useful (:mod:`node.learner.off_policy`).
        at_once: whether the gradients of these rows' groups may be held at once where they fit.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: Optimizer,
        add: Adding,
        summed: Callable[[Tensor], Tensor],
        *,
        by_use: bool,
        at_once: Callable[[Sequence[Row]], bool],
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._add = add
        self._summed = summed
        self._by_use = by_use
        self._at_once = at_once
        self._small = True
        self._checked = False

    def add(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: Tally, groups: float
    ) -> tuple[Tensor, Influence]:
        """Add the gradient of all rows, no external group's above its bound.

        Args:
            frozen: by completion, what the first pass over these rows fixes for later ones.
            groups: informative ones that the step stands for.

        Returns:
            The loss, a scalar, and what external groups had to do with it.
        """
        if all(row.own for row in rows):
            return self._add(rows, frozen, tally), Influence()
        together = None
        if self._small and self._at_once(rows) and fits([*self._model.parameters()], len(rows)):
            together = self._together(rows, frozen, tally, groups)
        return together or self._one_by_one(rows, frozen, tally, groups)

    def _together(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: Tally, groups: float
    ) -> tuple[Tensor, Influence] | None:
        """As :meth:`add`, in one pass of all rows; None, and nothing added, where that cannot be.

        A gradient that is not finite is found out by reading the groups one by one.
        """
        seen, heard = dict(frozen), Tally()
        with GroupGradients(self._model, [row.group for row in rows]) as apart:
            loss = self._add(rows, seen, heard, apart=apart)
        if not (self._checked or apart.complete):
            self._small = False
            log.info("groups are read one by one: this model has weights that no hook listens to")
        values = apart.norms() if self._small else []
        if not values or not all(map(math.isfinite, values)):
            self._optimizer.discard()
            return None
        self._checked = True
        norms, weights = GroupNorms(groups), self._weights(rows, heard)
        for row, norm in zip(rows, values, strict=True):
            norms.take(row.group, norm, own=row.own, weight=weights.get(row.group, 1.0))
        scales = norms.scales()
        if min(scales.values()) < 1.0:
            apart.weigh([scales.get(row.group, 1.0) for row in rows])
        frozen.update(seen)
        tally.add(heard)
        return loss, norms.influence()

    def _one_by_one(
        self, rows: Sequence[Row], frozen: dict[int, Tensor], tally: Tally, groups: float
    ) -> tuple[Tensor, Influence]:
        """As :meth:`add`, in a pass for each group: takes the memory of a second gradient."""
        parts, norms = GradientSum(self._optimizer.masters, self._summed), GroupNorms(groups)
        losses = []
        for row in sorted(rows, key=lambda row: not row.own):
            heard = Tally()
            loss = self._add([row], frozen, heard)
            tally.add(heard)
            weight = self._weights([row], heard).get(row.group, 1.0)
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
                self._add([row], dict(frozen), Tally(), factor)
                parts.keep()
        parts.hand_over()
        return torch.stack(losses or [torch.zeros_like(loss)]).sum(), norms.influence()

    def _weights(self, rows: Sequence[Row], heard: Tally) -> Mapping[int, float]:
        return usefulness(rows, heard.plausible()) if self._by_use else {}
