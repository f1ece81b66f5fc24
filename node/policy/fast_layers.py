"""Layers that compute the same faster; results differ in their last bits.

On a CPU, oneDNN multiplies in float32. MKL, which torch uses, does not use the widest instructions
of other vendors' processors; oneDNN takes less than half the time there. In 16 bits torch is made
to multiply frozen weights once instead of once per row.

On a GPU, RMS normalization (arXiv:1910.07467) is one kernel, as the engines compute it. The
library's layers take eight forward and more backward, and round before they multiply with the
weights.

On both, attention reads completions that share a row without a mask (:class:`Unpacking`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import embedding, rms_norm
from torch.nn.functional import linear as torch_linear
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

log = logging.getLogger(__name__)

LEAST_WEIGHTS = 1 << 18  # minimum per layer; in smaller ones, calls cost more than products
LEAST_WORK = 1 << 20  # minimum multiplications of a product that repay oneDNN's longer call
QUICKER = 0.8  # maximum share of torch's time; closer times could swap between starts
PROBED_SIZE, PROBED_ROWS, PROBES = 768, 64, 9
PACKED_ROWS = 8  # rows that the layout is made for; other counts are no slower than without it

HALVES = torch.bfloat16, torch.float16

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""``x W^T + b`` of ``x [..., I]``, ``W [O, I]`` and ``b [O]``."""


class OneDnnLinear(nn.Linear):
    """An ``nn.Linear`` that multiplies with :func:`linear`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)


class FlatLinear(nn.Linear):
    """An ``nn.Linear`` of 16 bits that multiplies all rows at once, also if it is not trained.

    For a batch of several rows or of one, torch 2.13 copies weights without gradient per row: the
    output matrix of SmolLM2-135M took 1.2 s and 450 MB for eight positions, and takes 8 ms.
    """

    def forward(self, input: Tensor) -> Tensor:
        if self.weight.requires_grad or input.dim() < 3:
            return super().forward(input)
        flat = torch_linear(input.flatten(0, -2), self.weight, self.bias)
        return flat.view(*input.shape[:-1], -1)


def quicken(model: nn.Module) -> int:
    """Switch large float32 CPU layers to oneDNN if that is faster; return how many.

    Layers of 16 bits become :class:`FlatLinear`.
    """
    for layer in model.modules():
        if type(layer) is nn.Linear and _on_cpu(layer.weight) and layer.weight.dtype in HALVES:
            layer.__class__ = FlatLinear
    layers = [x for x in model.modules() if type(x) is nn.Linear and _suits(x.weight)]
    if not layers or not quicker():
        return 0
    for layer in layers:
        layer.__class__ = OneDnnLinear
    return len(layers)


def product_of(weight: Tensor) -> Product:
    """Return the function to multiply with a matrix outside of any layer."""
    return linear if _suits(weight) and quicker() else torch_linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute ``x W^T + b`` by oneDNN, or by torch if small; no second derivative."""
    rows = x.numel() // weight.shape[1]
    if rows * weight.numel() < LEAST_WORK:
        return torch_linear(x, weight, bias)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad):
        output = _Differentiable.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return cast(Tensor, output)
    return _product(x, weight, bias)


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left [..., N, K] @ right [K, M]`` by oneDNN."""
    return _product(left, right.t())


def packed(weight: Tensor) -> Tensor | None:
    """Copy a matrix into a layout for :func:`packed_product`, if that is faster.

    Otherwise each product lays out the whole matrix, which for few rows doubles its time.
    """
    return lay_out(weight.detach()) if _large(weight) and packing_pays(weight.dtype) else None


def _suits(weight: Tensor) -> bool:
    return _large(weight) and weight.dtype == torch.float32


def _large(weight: Tensor) -> bool:
    return _on_cpu(weight) and weight.numel() >= LEAST_WEIGHTS


def _on_cpu(weight: Tensor) -> bool:
    return weight.device.type == "cpu"


def lay_out(weight: Tensor) -> Tensor:
    """Copy a matrix for few-row products; RuntimeError if this CPU's oneDNN cannot."""
    prepacked: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return prepacked


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``x W^T + b``; matrices may be transposed or in oneDNN's layout."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


class _Differentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        flat = gradient.flatten(0, -2)
        return (
            matmul(gradient, weight) if needs_x else None,
            matmul(flat.t(), x.flatten(0, -2)) if needs_weight else None,
            flat.sum(0) if needs_bias else None,
        )


packed_product: Product = _product  # ``x W^T + b`` where ``W`` is :func:`packed`.


@cache
def quicker() -> bool:
    """Return whether oneDNN multiplies a medium-sized layer faster on this processor."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        x = torch.randn(PROBED_ROWS, PROBED_SIZE)
        weight = torch.randn(PROBED_SIZE, PROBED_SIZE)
        ratio = share_of_time(lambda: _product(x, weight), lambda: torch_linear(x, weight))
    return _pays(f"oneDNN with {PROBED_ROWS} rows", ratio)


@cache
def packing_pays(dtype: torch.dtype) -> bool:
    """Return whether :func:`lay_out` makes a medium-sized layer faster for few rows."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        x = torch.randn(PACKED_ROWS, PROBED_SIZE, dtype=dtype)
        weight = torch.randn(PROBED_SIZE, PROBED_SIZE, dtype=dtype)
        try:
            prepacked = lay_out(weight)
        except RuntimeError as error:
            log.info("oneDNN lays out no matrix of %s on this processor: %.200s", dtype, error)
            return False
        ours, theirs = partial(_product, x, prepacked), partial(product_of(weight), x, weight, None)
        ratio = share_of_time(ours, theirs)
    return _pays(f"a matrix of {dtype} laid out for {PACKED_ROWS} rows", ratio)


def share_of_time(ours: Callable[[], Tensor], theirs: Callable[[], Tensor]) -> float:
    """Return the minimum time of ``ours`` over that of ``theirs``, run in turns."""
    times: dict[Callable[[], Tensor], list[float]] = {ours: [], theirs: []}
    for _ in range(PROBES):
        for call, seconds in times.items():
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
    return min(times[ours]) / min(times[theirs])


def _pays(method: str, ratio: float) -> bool:
    is_chosen = ratio < QUICKER
    log.info(
        "a product with %d x %d weights takes %.2f of its time by %s: %s",
        PROBED_SIZE,
        PROBED_SIZE,
        ratio,
        method,
        "so it is done" if is_chosen else "it is left as it is",
    )
    return is_chosen


PROBED = 4  # Vectors that both ways normalize before a layer is switched.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


def normalized(x: Tensor, norm: Any) -> Tensor:
    """Return what a layer ``norm`` computes, without the cost of calling a module."""
    return rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


class FusedNorm(nn.Module):
    """Base of switched layers, which also keep their own class."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, x: Tensor) -> Tensor:
        return normalized(x, self)


def fuse_norms(model: nn.Module) -> int:
    """Switch a GPU's RMS normalization layers to one kernel; return how many."""
    layers = [x for x in model.modules() if any(w.is_cuda for w in x.parameters(recurse=False))]
    return sum(map(fuse_norm, layers))


def fuse_norm(layer: nn.Module) -> bool:
    """Switch a layer if it computes ``x / rms(x) * weight``; return whether it does."""
    weight, epsilon = getattr(layer, "weight", None), getattr(layer, "variance_epsilon", None)
    if isinstance(layer, FusedNorm) or not isinstance(weight, Tensor) or epsilon is None:
        return False
    if weight.dim() != 1 or weight.dtype not in TOLERANCE or not _same(layer, weight, epsilon):
        return False
    layer.__class__ = _fused(type(layer))
    return True


@torch.no_grad()
def _same(layer: nn.Module, weight: Tensor, epsilon: float) -> bool:
    x = torch.randn(1, PROBED, len(weight), generator=torch.Generator().manual_seed(0)).to(weight)
    expected: Any = layer(x)
    fused = rms_norm(x, x.shape[-1:], weight, epsilon)
    tol = TOLERANCE[weight.dtype]
    return expected.dtype == fused.dtype and torch.allclose(expected, fused, rtol=tol, atol=tol)


def _fused(kind: type[nn.Module]) -> type[nn.Module]:
    if kind not in SWITCHED:
        SWITCHED[kind] = type(kind.__name__, (FusedNorm, kind), {"__module__": __name__})
    return SWITCHED[kind]


SWITCHED: dict[type[nn.Module], type[nn.Module]] = {}


@dataclass(frozen=True, slots=True)
class Unpacking:
    """Attention to the completions of shared rows without a mask.

    A row ``[prompt | c1 | c2 | ...]`` needs a mask over the square of its length. Copied to
    sequences ``[prompt | c1]``, ``[prompt | c2]``, ..., queries, keys and values need none.
    """

    places: Tensor  # int64 ``[N, M]``, of the padded sequences' tokens among those of the rows
    origins: Tensor  # int64 ``[B * L]``, of the rows' tokens among those of the sequences

    def copied(self, x: Tensor) -> Tensor:
        """Copy ``[B, H, L, D]`` to ``[N, H, M, D]``."""
        # The gradient of an embedding is added up in a fixed order, also on a GPU.
        tokens = x.transpose(1, 2).flatten(2).flatten(0, 1)
        sequences = embedding(self.places, tokens)
        return sequences.view(*sequences.shape[:2], x.shape[1], -1).transpose(1, 2)

    def gathered(self, x: Tensor, batch: int) -> Tensor:
        """Return the outputs ``[N, M, H, D]`` of the rows' tokens, ``[B, L, H, D]``."""
        return embedding(self.origins, x.flatten(2).flatten(0, 1)).view(batch, -1, *x.shape[2:])


@dataclass(slots=True)
class UnpackingProbe:
    """Stands for an :class:`Unpacking`, to count the layers that would use it as they should."""

    layers: int = 0


@dataclass(frozen=True, slots=True)
class UnpackedAttention:
    """The library's attention function, which takes an :class:`Unpacking` as ``unpacking``."""

    function: Callable[..., tuple[Tensor, Tensor | None]]

    @classmethod
    def install(cls) -> None:
        """Wrap what now computes attention of the kind ``"sdpa"`` in all models."""
        function = ALL_ATTENTION_FUNCTIONS["sdpa"]
        if not isinstance(function, cls):
            ALL_ATTENTION_FUNCTIONS["sdpa"] = cls(function)

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        unpacking: Unpacking | UnpackingProbe | None = None,
        **settings: Any,
    ) -> tuple[Tensor, Tensor | None]:
        if isinstance(unpacking, Unpacking):
            q, k, v = map(unpacking.copied, (query, key, value))
            output, _ = self.function(module, q, k, v, None, **settings)
            return unpacking.gathered(output, len(query)), None
        if unpacking and attention_mask is None and settings.get("position_bias") is None:
            unpacking.layers += 1
        return self.function(module, query, key, value, attention_mask, **settings)
