"""Gradients of single groups: all from one backward pass, or one after the other.

A linear layer's weight gradient is a product of its input and its output's gradient. One pass
therefore gives each row's part (per-example gradients, Goodfellow, arXiv 1510.01799). That is
faster for small models, but holds one gradient per group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from node.learner.optimizer import local
from node.lifecycle import Opened

MOST_BYTES = 256 << 20  # For the gradients of all groups together.
AGREEMENT = 1e-3  # Maximum error of the parts' sum, relative to the gradient's norm.

Part = Callable[[Tensor], Tensor]
"""From a module's output gradient ``[B, ...]`` to each row's gradient of a weight, ``[B, ...]``."""


def gradients_fit(parameters: Sequence[Tensor], groups: int) -> bool:
    """Return whether the groups' gradients, all plain float32, may be held together."""
    trained = [p for p in parameters if p.requires_grad]
    plain = all(type(p) is nn.Parameter and p.dtype == torch.float32 for p in trained)
    return plain and 4 * groups * sum(p.numel() for p in trained) <= MOST_BYTES


class GroupGradients(Opened):
    """Context manager that records each group's gradient with module hooks.

    Only weights in linear layers, embeddings and RMS norms are recorded, see :attr:`complete`.
    """

    def __init__(self, model: nn.Module, groups: Sequence[int]) -> None:
        self._model = model
        self._places = {number: index for index, number in enumerate(groups)}
        self._parts: dict[Tensor, Tensor] = {}
        self._rows = torch.empty(0, dtype=torch.int64)

    def _open(self, stack: ExitStack) -> None:
        for module in self._model.modules():
            if (parts := _parts_of(module)) is not None:
                stack.callback(module.register_forward_hook(self._listener(parts)).remove)

    def reads(self, groups: Sequence[int], device: torch.device) -> None:
        """Set the group of each row of the next forward pass."""
        self._rows = torch.tensor([self._places[number] for number in groups], device=device)

    def clear(self) -> None:
        self._parts.clear()

    @property
    def complete(self) -> bool:
        """Whether the groups' gradients add up to the model's gradient."""
        error = scale = torch.zeros(())
        for weight in self._model.parameters():
            if weight.grad is None:
                continue
            if weight not in self._parts:
                return False
            error = error + (self._parts[weight].sum(0) - weight.grad).square().sum()
            scale = scale + weight.grad.square().sum()
        return bool(error <= AGREEMENT**2 * scale)

    def norms(self) -> list[float]:
        squares = [part.flatten(1).square().sum(1) for part in self._parts.values()]
        norms: list[float] = torch.stack(squares).sum(0).sqrt().tolist()
        return norms

    def weigh(self, scales: Sequence[float]) -> None:
        """Set the model's gradient to the sum of the groups' gradients times their scales."""
        for weight, part in self._parts.items():
            weight.grad = torch.tensordot(part.new_tensor(scales), part, dims=1)

    def _listener(self, parts: Callable[..., dict[Tensor, Part]]) -> Callable[..., None]:
        def on_forward(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if not output.requires_grad:
                return
            rows, functions = self._rows, parts(module, inputs[0].detach())

            def on_backward(gradient: Tensor) -> None:
                for weight, function in functions.items():
                    self._add(weight, rows, function(gradient))

            output.register_hook(on_backward)  # type: ignore[no-untyped-call]

        return on_forward

    def _add(self, weight: Tensor, rows: Tensor, part: Tensor) -> None:
        if weight not in self._parts:
            self._parts[weight] = weight.new_zeros((len(self._places), *weight.shape))
        if len(part) == len(rows):  # otherwise `complete` finds the sum wrong
            self._parts[weight].index_add_(0, rows, part)


def _parts_of(module: nn.Module) -> Callable[..., dict[Tensor, Part]] | None:
    if isinstance(module, nn.Linear):
        return _linear
    if isinstance(module, nn.Embedding):
        return _embedding
    return _norm if type(module).__name__.endswith("RMSNorm") else None


def _linear(module: nn.Linear, inputs: Tensor) -> dict[Tensor, Part]:
    parts: dict[Tensor, Part] = {}
    if module.weight.requires_grad:
        parts[module.weight] = lambda gradient: torch.bmm(
            gradient.flatten(1, -2).transpose(1, 2), inputs.flatten(1, -2)
        )
    if module.bias is not None and module.bias.requires_grad:
        parts[module.bias] = lambda gradient: gradient.flatten(1, -2).sum(1)
    return parts


def _embedding(module: nn.Embedding, inputs: Tensor) -> dict[Tensor, Part]:
    vocab, width = module.weight.shape

    def part(gradient: Tensor) -> Tensor:
        rows = len(inputs)
        starts = torch.arange(rows, device=inputs.device)[:, None] * vocab
        indices = (inputs + starts).flatten()
        zeros = gradient.new_zeros(rows * vocab, width)
        return zeros.index_add(0, indices, gradient.reshape(-1, width)).view(rows, vocab, width)

    return {module.weight: part} if module.weight.requires_grad else {}


def _norm(module: Any, inputs: Tensor) -> dict[Tensor, Part]:
    epsilon = float(getattr(module, "variance_epsilon", None) or getattr(module, "eps", None) or 0)
    mean = inputs.float().square().mean(-1, keepdim=True)
    normalized = inputs * torch.rsqrt(mean + epsilon)

    def part(gradient: Tensor) -> Tensor:
        return (gradient * normalized).flatten(1, -2).sum(1)

    return {module.weight: part} if module.weight.requires_grad else {}


class GradientSum:
    """Sum of gradients that are computed one by one, measured, and kept or dropped.

    The current part is in ``grad``; ``total`` sums a float32 scalar over ranks.
    """

    def __init__(self, weights: Sequence[Tensor], total: Callable[[Tensor], Tensor]) -> None:
        self._weights = weights
        self._total = total
        self._kept: list[Tensor | None] = [None] * len(weights)

    def norm(self) -> float:
        gradients = local([weight.grad for weight in self._weights if weight.grad is not None])
        if not gradients:
            return 0.0
        norms = torch._foreach_norm(gradients, dtype=torch.float32)
        return math.sqrt(float(self._total(torch.stack(norms).square().sum())))

    def keep(self, factor: float = 1.0) -> None:
        """Add ``factor`` times the current part to the sum."""
        pairs = list[tuple[Tensor, Tensor]]()
        for number, weight in enumerate(self._weights):
            total, part = self._kept[number], weight.grad
            weight.grad = None
            if part is None:
                continue
            if total is not None:
                pairs.append((total, part))
                continue
            self._kept[number] = part if factor == 1.0 else part.mul_(factor)
        if pairs:
            totals, parts = (local(each) for each in zip(*pairs, strict=True))
            if factor != 1.0:
                torch._foreach_mul_(parts, factor)
            torch._foreach_add_(totals, parts)

    def drop(self) -> None:
        for weight in self._weights:
            weight.grad = None

    def hand_over(self) -> None:
        """Move the sum into ``grad``."""
        for weight, total in zip(self._weights, self._kept, strict=True):
            weight.grad = total
        self._kept = [None] * len(self._weights)
