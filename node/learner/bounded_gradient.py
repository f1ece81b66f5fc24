"""The gradient of an update, in which external groups have no more than is theirs."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from node.learner.batches import Row
from node.learner.gradient_sum import GradientSum
from node.learner.group_gradients import GroupGradients, fits
from node.learner.influence import GroupNorms, Influence
from node.learner.optimizer import Optimizer
from node.learner.plausibility import usefulness
from node.learner.update_stats import Tally

log = logging.getLogger(__name__)


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
        by_use: external groups count as far as they are useful (:mod:`node.learner.plausibility`).
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
