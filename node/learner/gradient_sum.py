"""The gradient of an update, added up from parts that are looked at one by one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor


class GradientSum:
    """Parts pile up in ``grad`` as they are computed, and are then measured and kept or dropped.

    What is kept takes the memory of a second gradient.

    Args:
        weights: tensors whose ``grad`` is meant; over several ranks each holds a part of them.
        total: sums a float32 scalar over ranks.
    """

    def __init__(self, weights: Sequence[Tensor], total: Callable[[Tensor], Tensor]) -> None:
        self._weights = weights
        self._total = total
        self._kept: list[Tensor | None] = [None] * len(weights)

    def norm(self) -> float:
        """L2 norm of the part at hand."""
        return self._norm([weight.grad for weight in self._weights])

    def keep(self, factor: float = 1.0) -> None:
        """Add ``factor`` times the part at hand to what is kept."""
        for number, weight in enumerate(self._weights):
            kept, part = self._kept[number], weight.grad
            if part is not None:
                part = part if factor == 1.0 else part.mul_(factor)
                self._kept[number] = part if kept is None else kept.add_(part)
            weight.grad = None

    def drop(self) -> None:
        """Forget the part at hand."""
        for weight in self._weights:
            weight.grad = None

    def hand_over(self) -> None:
        """Make what is kept the gradient."""
        for weight, kept in zip(self._weights, self._kept, strict=True):
            weight.grad = kept
        self._kept = [None] * len(self._weights)

    def _norm(self, tensors: Sequence[Tensor | None]) -> float:
        norms = [
            torch.linalg.vector_norm(_local(each), dtype=torch.float32)
            for each in tensors
            if each is not None
        ]
        if not norms:
            return 0.0
        return math.sqrt(float(self._total(torch.stack(norms).square().sum())))


def _local(tensor: Tensor) -> Tensor:
    """This rank's part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
