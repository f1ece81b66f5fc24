"""Gradient norms of a micro-batch's groups, measured in its one backward pass.

A weight's gradient is a sum over tokens. Computed group by group it costs as many multiplications,
and each group's part can be measured before it is added to the others (per-example gradients,
Goodfellow, arXiv:1510.01799; book-keeping, arXiv:2210.00038). The parts exist for one layer at a
time, so this works for models of any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from node.learner.batches import MicroBatch
from node.lifecycle import Opened
from node.policy.fast_layers import FlatLinear, FusedNorm, OneDnnLinear, linear, matmul

CPU_BYTES, GPU_BYTES = 1 << 20, 256 << 20
"""Parts of a weight's gradient that are computed together: on a CPU they stay in its cache."""


@dataclass(frozen=True, slots=True)
class GroupIds:
    """The distinct ids that each group reads; those of group ``g`` begin at ``starts[g]``."""

    ids: Tensor  # int64 [U]
    owners: Tensor  # int64 [U], their groups
    starts: Sequence[int]
    inverse: Tensor  # int64 [tokens], place of each token's id

    @classmethod
    def of(cls, ids: Tensor, sizes: Sequence[int], device: torch.device) -> GroupIds:
        """Return the distinct ids of ``ids [B, ...]``, moved to a device."""
        counts = torch.tensor(sizes, device=ids.device) * len(ids) // sum(sizes)
        owner = torch.arange(len(sizes), device=ids.device).repeat_interleave(counts)
        keys = owner.view(-1, *[1] * (ids.dim() - 1)) * (1 << 32) + ids
        keys, inverse = torch.unique(keys, return_inverse=True)
        owners = keys >> 32
        starts = [*accumulate(torch.bincount(owners).tolist(), initial=0)]
        unique_ids = (keys % (1 << 32)).to(device)
        return cls(unique_ids, owners.to(device), starts, inverse.flatten().to(device))


@dataclass(eq=False, slots=True)
class Layout:
    """A micro-batch whose rows are in the order of their groups, and what was measured of it."""

    sizes: tuple[int, ...]  # rows of each group
    squares: Tensor  # float32 [groups], squared norms, without those in ``norms``
    input_ids: Tensor
    group_ids: GroupIds  # of the input
    scored: Sequence[int]  # of each group, positions that predict trained tokens
    norms: list[Tensor] = field(default_factory=list)  # float32 [groups], of some weights each
    piece: tuple[int, bool] | None = None  # see :meth:`GroupNorms.piece`
    begun: dict[int, Tensor] = field(default_factory=dict)  # parts that lack pieces, by weight
    tied: dict[int, Tensor] = field(default_factory=dict)  # an output matrix's parts at these ids
    buffers: dict[Any, Tensor] = field(default_factory=dict)  # see :meth:`scratch`
    called: set[int] = field(default_factory=set)  # modules with trained weights, by ``id``
    used: set[int] = field(default_factory=set)  # their weights, by ``id``
    measured: set[int] = field(default_factory=set)  # weights of which parts were measured
    all_measured: bool = True  # whether every use of a weight so far was measured

    @classmethod
    def of(cls, batch: MicroBatch) -> Layout:
        numbers = list(dict.fromkeys(batch.groups))
        owners = [numbers.index(number) for number in batch.groups]
        scored = [0] * len(numbers)
        for owner, count in zip(owners, batch.per_row, strict=True):
            scored[owner] += count
        sizes, device = tuple(map(owners.count, range(len(numbers)))), batch.input_ids.device
        return cls(
            sizes=sizes,
            squares=torch.zeros(len(numbers), device=device),
            input_ids=batch.input_ids,
            group_ids=GroupIds.of(batch.host_ids, sizes, device),
            scored=scored,
        )

    def by_group(self, x: Tensor, most: int) -> list[Tensor]:
        """Split ``x [B, ..., D]`` into the groups' vectors ``[n, N, D]``, of up to ``most``."""
        if len(set(self.sizes)) == 1:
            vectors = x.reshape(len(self.sizes), -1, x.shape[-1])
            return [vectors] if most >= len(self.sizes) else [*torch.split(vectors, most)]
        per_row = len(x) // sum(self.sizes)
        parts = torch.split(x, [per_row * size for size in self.sizes])
        return [part.reshape(1, -1, x.shape[-1]) for part in parts]

    def scratch(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return memory for parts, which other weights use as well."""
        key = (shape, like.dtype)
        if key not in self.buffers:
            self.buffers[key] = like.new_empty(shape)
        return self.buffers[key]

    def measure(self, parts: Tensor, begin: int = 0) -> None:
        """Count parts ``[n, ...]`` of a weight's gradient, of the groups from ``begin`` on."""
        norms = torch.linalg.vector_norm(parts.flatten(1), dim=1, dtype=torch.float32)
        if parts.shape[0] == len(self.sizes):
            self.norms.append(norms)
        else:
            self.squares[begin : begin + len(parts)].addcmul_(norms, norms)

    def total(self) -> Tensor:
        """Return the norm of each group's gradient, float32 ``[groups]``."""
        squares = self.squares
        if self.norms:
            squares = squares + torch.stack(self.norms).square().sum(0)
        return squares.clamp(min=0.0).sqrt()  # What tied weights have in common may be negative.

    def note_measured(self, weight: int) -> None:
        """Note a weight that is used once, or twice if ``tied``; its squares do not add up."""
        self.all_measured &= weight not in self.measured
        self.measured.add(weight)

    def keep_tied(self, weight: int, parts: Tensor, begin: int) -> None:
        """Keep what an output matrix's parts have in common with those of the embeddings."""
        group_ids = self.group_ids
        first, last = group_ids.starts[begin], group_ids.starts[begin + len(parts)]
        rows = parts[group_ids.owners[first:last] - begin, group_ids.ids[first:last]]
        if weight not in self.tied:
            self.tied[weight] = rows.new_zeros(len(group_ids.ids), rows.shape[-1])
        self.tied[weight][first:last] = rows


def _trained(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters(recurse=False) if weight.requires_grad]


LINEAR: dict[type[nn.Module], bool] = {nn.Linear: False, FlatLinear: False, OneDnnLinear: True}
"""Layers of which the product alone is known; by whether oneDNN computes it."""


class GroupNorms(Opened):
    """Context manager that measures each group's gradient in a model's backward passes.

    It measures weights of linear layers, embeddings and normalizations, see :meth:`complete`. Call
    :meth:`reads` before a micro-batch's forward pass.
    """

    def __init__(self, model: nn.Module) -> None:
        modules = list(model.modules())
        self._trains = [m for m in modules if _trained(m)]
        embedded = {id(m.weight) for m in modules if isinstance(m, nn.Embedding)}
        linear = [m for m in modules if isinstance(m, nn.Linear)]
        self._tied = {id(m) for m in linear if id(m.weight) in embedded}
        self._layout: Layout | None = None

    def _open(self, stack: ExitStack) -> None:
        for module in self._trains:
            module.forward = partial(self._forward, module, module.forward)
            stack.callback(delattr, module, "forward")  # restores the class's method
        stack.callback(setattr, self, "_layout", None)  # which holds memory

    def reads(self, batch: MicroBatch) -> None:
        """Begin a micro-batch in which the rows of each group are consecutive."""
        self._layout = Layout.of(batch)

    @property
    def layout(self) -> Layout:
        assert self._layout is not None
        return self._layout

    @contextmanager
    def piece(self, group: int, *, last: bool) -> Iterator[None]:
        """Read some positions of one group in the block: its ``last``, or not all of them."""
        self.layout.piece = group, last
        try:
            yield
        finally:
            self.layout.piece = None

    def complete(self) -> bool:
        """Return whether the groups' gradients add up to the model's gradient."""
        all_called = {id(module) for module in self._trains} <= self.layout.called
        return all_called and self.layout.all_measured and self.layout.used <= self.layout.measured

    def norms(self) -> list[float]:
        """Return the norm of each group's gradient, in the order of their rows."""
        norms: list[float] = self.layout.total().tolist()
        return norms

    def _forward(
        self, module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        layout = self._layout
        if layout is None or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        # Sharded weights are others here than between passes.
        layout.called.add(id(module))
        layout.used.update(map(id, _trained(module)))
        if not args or not isinstance(args[0], Tensor):
            layout.all_measured = False
            return forward(*args, **kwargs)
        x = args[0]
        fits = layout.piece is not None or len(x) % sum(layout.sizes) == 0
        if type(module) in LINEAR and fits:
            tied, by_onednn = id(module) in self._tied, LINEAR[type(module)]
            return _Linear.apply(x, module.weight, module.bias, layout, tied, by_onednn)  # type: ignore[no-untyped-call]
        if isinstance(module, FusedNorm) and fits and layout.piece is None:
            normal = F.rms_norm(x, x.shape[-1:], None, module.variance_epsilon)
            return normal * _Spread.apply(module.weight, len(x), x.dim(), layout)  # type: ignore[no-untyped-call]
        with _OwnWeights(layout, module, id(module) in self._tied, x.shape):
            return forward(*args, **kwargs)


WEIGHT_AT = {"linear": 1, "addmm": 2, "embedding": 1, "layer_norm": -1, "rms_norm": -1}
"""Functions whose weights' gradients are measured, and the weight's place among the arguments."""


class _OwnWeights(TorchFunctionMode):
    """Replaces the uses of a module's own weights by ones that measure their gradients."""

    def __init__(
        self, layout: Layout, module: nn.Module, tied: bool, came_in: Sequence[int]
    ) -> None:
        super().__init__()
        self._layout, self._tied = layout, tied
        self._own = set(map(id, _trained(module)))
        self._is_norm = "Norm" in type(module).__name__
        self._rows, self._dims = came_in[0], len(came_in)

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name, own_ids = kwargs or {}, getattr(func, "__name__", ""), self._own
        weights = [each for each in (*args, *kwargs.values()) if id(each) in own_ids]
        if name == "__get__" or not weights:
            return func(*args, **kwargs)
        rows = self._rows if name != "embedding" or self._rows > 1 else 0
        if self._layout.piece or rows % sum(self._layout.sizes) == 0:
            weight = kwargs.get("weight", args[WEIGHT_AT.get(name, 0)])
            if name in WEIGHT_AT and id(weight) in own_ids:
                return getattr(self, f"_use_{name}")(*args, **kwargs)
            if self._is_norm and all(each.dim() == 1 for each in weights):
                return func(*(self._spread(x) if id(x) in own_ids else x for x in args), **kwargs)
        self._layout.all_measured = False
        return func(*args, **kwargs)

    def _use_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        value: Tensor = _Linear.apply(x, weight, bias, self._layout, self._tied, False)  # type: ignore[no-untyped-call]
        return value

    def _use_addmm(self, bias: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        value: Tensor = _Flipped.apply(x, weight, self._layout)  # type: ignore[no-untyped-call]
        self._rows, self._dims = len(x), x.dim()  # tokens of all rows
        return value + self._spread(bias)

    def _use_embedding(
        self, ids: Tensor, weight: Tensor, padding_idx: int | None = None, **settings: Any
    ) -> Tensor:
        if settings["max_norm"] is not None or settings["scale_grad_by_freq"]:
            self._layout.all_measured = False
            return F.embedding(ids, weight, padding_idx, **settings)
        layout, device = self._layout, weight.device
        if ids.data_ptr() == layout.input_ids.data_ptr():
            group_ids = layout.group_ids
        else:  # positions, which may be the same for all rows
            ids = ids.expand(sum(layout.sizes), *ids.shape[1:]) if len(ids) == 1 else ids
            group_ids = GroupIds.of(ids, layout.sizes, device)
        value: Tensor = _Embedding.apply(ids, weight, padding_idx, layout, group_ids)  # type: ignore[no-untyped-call]
        return value

    def _use_layer_norm(
        self, x: Tensor, shape: Any, *, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        output = F.layer_norm(x, shape, None, None, eps) * self._spread(weight)
        return output if bias is None else output + self._spread(bias)

    def _use_rms_norm(self, x: Tensor, shape: Any, *, weight: Tensor, eps: float | None) -> Tensor:
        return F.rms_norm(x, shape, None, eps) * self._spread(weight)

    def _spread(self, weight: Tensor) -> Tensor:
        value: Tensor = _Spread.apply(weight, self._rows, self._dims, self._layout)  # type: ignore[no-untyped-call]
        return value


class _Linear(torch.autograd.Function):
    """``x W^T + b``, by oneDNN or torch; gradients of ``W`` and ``b`` are measured."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        layout: Layout,
        tied: bool,
        by_onednn: bool,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rest = layout, layout.piece, id(weight), id(bias), tied, by_onednn
        return (linear if by_onednn else F.linear)(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        layout, piece, weight_id, bias_id, tied, by_onednn = ctx.rest
        multiply = matmul if by_onednn else torch.matmul
        grad_x = multiply(gradient, weight) if ctx.needs_input_grad[0] else None
        grad_w = grad_b = None
        if ctx.needs_input_grad[1]:
            if piece is None:
                grad_w = _products(layout, weight_id, gradient, x, tied=tied, by_onednn=by_onednn)
            else:
                part = multiply(gradient.flatten(0, -2).t(), x.flatten(0, -2))
                grad_w = _pieced(layout, piece, weight_id, part, tied=tied)
        if ctx.needs_input_grad[2]:
            if piece is None:
                grad_b = _sums(layout, bias_id, gradient)
            else:
                part = gradient.flatten(0, -2).sum(0)
                grad_b = _pieced(layout, piece, bias_id, part, tied=False)
        return grad_x, grad_w, grad_b, None, None, None


class _Flipped(torch.autograd.Function):
    """``x W``; the gradient of ``W`` is measured."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layout: Layout) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rest = layout, id(weight)
        return x @ weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        layout, weight_id = ctx.rest
        grad_x = gradient @ weight.t() if ctx.needs_input_grad[0] else None
        return grad_x, _products(layout, weight_id, x, gradient), None


def _products(
    layout: Layout,
    param_id: int,
    left: Tensor,
    right: Tensor,
    *,
    tied: bool = False,
    by_onednn: bool = False,
) -> Tensor:
    """Return the sum over tokens of ``left right^T``, and measure each group's part."""
    layout.note_measured(param_id)
    size = left.shape[-1] * right.shape[-1] * left.element_size()
    on_cpu = left.device.type == "cpu"
    limit = 1 if by_onednn else max(1, (CPU_BYTES if on_cpu else GPU_BYTES) // size)
    total, begin = None, 0
    for pair in zip(layout.by_group(left, limit), layout.by_group(right, limit), strict=True):
        if by_onednn and len(pair[0]) == 1:
            parts = matmul(pair[0][0].t(), pair[1][0])[None]
        else:
            shape = (len(pair[0]), left.shape[-1], right.shape[-1])
            # The first part becomes the gradient; the memory of others is used again and again.
            out = layout.scratch(shape, left) if begin else None
            parts = torch.bmm(pair[0].mT, pair[1], out=out)
        # A norm in the parts' own type sums in float32 too, and is six times as fast in bfloat16.
        by_rows = on_cpu and parts.dtype == torch.bfloat16
        layout.measure(torch.linalg.vector_norm(parts, dim=-1) if by_rows else parts, begin)
        if tied:
            layout.keep_tied(param_id, parts, begin)
        subtotal = parts[0] if len(parts) == 1 else parts.sum(0)
        total = subtotal if total is None else total.add_(subtotal)
        begin += len(parts)
    assert total is not None
    return total


def _sums(layout: Layout, param_id: int, x: Tensor) -> Tensor:
    """Return the sum over tokens of ``x [B, ..., D]``, and measure each group's part."""
    layout.note_measured(param_id)
    stacks = layout.by_group(x, len(layout.sizes))
    sums = [each.squeeze(1) if each.shape[1] == 1 else each.sum(1) for each in stacks]
    parts = sums[0] if len(sums) == 1 else torch.cat(sums)
    layout.measure(parts)
    return parts.sum(0)


def _pieced(
    layout: Layout, piece: tuple[int, bool], param_id: int, part: Tensor, *, tied: bool
) -> Tensor | None:
    """Return a group's part of a gradient when the last piece is there, and measure it."""
    group, last = piece
    earlier = layout.begun.pop(param_id, None)
    part = part if earlier is None else earlier.add_(part)
    if not last:
        layout.begun[param_id] = part
        return None
    layout.measured.add(param_id)
    layout.measure(part[None], group)
    if tied:
        layout.keep_tied(param_id, part[None], group)
    return part


class _Embedding(torch.autograd.Function):
    """Rows of ``W``; its gradient is measured, with that of an output matrix if ``W`` is both."""

    @staticmethod
    def forward(
        ctx: Any, ids: Tensor, weight: Tensor, padding: int | None, layout: Layout, read: GroupIds
    ) -> Tensor:
        ctx.rest = layout, id(weight), padding, weight.shape, read
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layout, param_id, padding, shape, group_ids = ctx.rest
        rows = gradient.new_zeros(len(group_ids.ids), shape[1], dtype=torch.float32)
        rows.index_add_(0, group_ids.inverse, gradient.reshape(-1, shape[1]).float())
        if padding is not None:
            rows.masked_fill_((group_ids.ids == padding)[:, None], 0.0)
        products = rows
        if (tied_rows := layout.tied.pop(param_id, None)) is None:
            layout.note_measured(param_id)
        else:
            products = torch.add(rows, tied_rows.float(), alpha=2.0)
        layout.squares.index_add_(0, group_ids.owners, (rows * products).sum(1))
        grad_w = gradient.new_zeros(shape).index_add_(0, group_ids.ids, rows.to(gradient.dtype))
        return None, grad_w, None, None, None


class _Spread(torch.autograd.Function):
    """``w``, once for each of ``rows`` lines of ``dims`` dimensions; its gradient is measured."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: int, dims: int, layout: Layout) -> Tensor:
        ctx.rest = layout, id(weight)
        return weight.expand(rows, *[1] * (dims - 2), len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layout, param_id = ctx.rest
        return _sums(layout, param_id, gradient), None, None, None
