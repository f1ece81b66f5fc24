"""Fused decoding step for Llama and Qwen models, optionally with 8-bit weights.

Kernel launches dominate decoding with small models, and on GPUs with medium ones. This step takes a
third of them: query, key and value are one product, normalization and rotation are few kernels, and
grouped key-value heads are not repeated. Weights are read in place unless a copy is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum, auto
from functools import cache, partial
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, rms_norm, scaled_dot_product_attention, silu
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from node.engines.transformers.kv_cache import GrowingLayer, growing_cache, joinable
from node.errors import ConfigError
from node.learner.micro_batching import STEADY_ROTATIONS
from node.policy.fast_layers import (
    FlatLinear,
    OneDnnLinear,
    normalized,
    packed,
    packed_product,
    product_of,
    share_of_time,
)
from node.policy.policy import Policy

STEPS, HALF_STEPS = 127, 63  # on either side of zero: of a signed byte, and with one bit unused
ZERO = 128  # stands for zero in an unsigned byte, as oneDNN takes activations
LEAST = 1e-30  # minimum scale of a row: a row of zeros has no quantization step
PROBED_SIZE, PROBED_ROWS = 1536, 32


class Rounded(NamedTuple):
    """A matrix ``[O, I]`` in 8 bits."""

    weight: Tensor  # int8, in oneDNN's layout
    step: Tensor  # float32 [O], quantization step of each row
    zeros: Tensor  # int64 [O], zero point of each row


def rounded(weight: Tensor, steps: int | None = None) -> Rounded:
    """Copy a matrix in 8 bits, by default with this CPU's :func:`weight_steps`."""
    matrix = weight.detach().float()
    step = matrix.abs().amax(1).clamp_(min=LEAST).div_(steps or weight_steps())
    quantized = (matrix / step[:, None]).round_().to(torch.int8)
    prepacked = torch.ops.onednn.qlinear_prepack(quantized, None)
    return Rounded(prepacked, step, torch.zeros(len(step), dtype=torch.int64))


@cache
def weight_steps() -> int:
    """Return the quantization steps per side at which this CPU's sums do not overflow.

    Without VNNI oneDNN adds two products in 16 bits: 2 x 255 x 63 fits, 2 x 255 x 127 does not.
    """
    return STEPS if exact(STEPS) else HALF_STEPS


def exact(steps: int) -> bool:
    """Return whether a product of the largest numbers of both sides is correct."""
    largest = torch.ones(1, PROBED_SIZE)
    product = rounded_product(largest, rounded(largest, steps), None)
    return torch.allclose(product, largest.sum())


def rounded_product(x: Tensor, weight: Rounded, bias: Tensor | None) -> Tensor:
    """Return ``x W^T + b`` in the dtype of ``x [B, I]``; ``W`` is :func:`rounded`."""
    inputs = x.float()
    max_abs = inputs.abs().amax(1, keepdim=True).clamp_(min=LEAST)
    # The cast truncates; adding 0.5 makes it round.
    quantized = (inputs * (STEPS / max_abs)).add_(ZERO + 0.5).to(torch.uint8)
    product: Tensor = torch.ops.onednn.qlinear_pointwise(
        quantized, 1.0, ZERO, *weight, None, 1.0, 0, torch.float32, "none", [], ""
    )
    product = product.mul_(max_abs / STEPS).to(x.dtype)
    return product if bias is None else product + bias


def check_rounding(policy: Policy) -> None:
    """Raise ConfigError if 8-bit weights do not suit the policy or are not faster."""
    if policy.device.type != "cpu":
        raise _refused(f"it is for CPUs, and the policy is on {policy.device.type}")
    model = policy.merged().model
    if not has_fused_step(model, growing_cache(model.config)):
        supported = ", ".join(each.__name__.removesuffix("ForCausalLM") for each in ARCHITECTURES)
        raise _refused(f"{type(model).__name__} is not one of {supported} in their plain form")
    check_processor()


def check_processor() -> None:
    """Raise ConfigError if this CPU's 8-bit products are wrong or not faster."""
    if (share := share_of_float32()) >= 1:
        raise _refused(f"this processor's matrix products take {share:.1f} times as long in 8 bits")
    if not exact(weight_steps()):
        raise _refused("this processor's 8-bit matrix products are wrong")


@cache
def share_of_float32() -> float:
    """Return an 8-bit product's time over float32's; infinite without oneDNN."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return float("inf")
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        x = torch.randn(PROBED_ROWS, PROBED_SIZE)
        weight = torch.randn(PROBED_SIZE, PROBED_SIZE)
        matrix, product = rounded(weight), product_of(weight)
        int8, float32 = partial(rounded_product, x, matrix, None), partial(product, x, weight, None)
        return share_of_time(int8, float32)


def _refused(reason: str) -> ConfigError:
    return ConfigError("engine.backend_options", {"int8": True}, f"Remove int8: {reason}.")


PACKED_STEPS = 16  # fewer steps do not repay a copy of the weights in oneDNN's layout
ARCHITECTURES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


PLAIN = nn.Linear, FlatLinear, OneDnnLinear


def has_fused_step(model: PreTrainedModel, cache: DynamicCache) -> bool:
    """Return whether the fused step computes exactly what ``model.forward`` does.

    Adapters, quantized weights, sliding windows and length-dependent rotations do not fit.
    """
    return (
        type(model) in ARCHITECTURES
        and joinable(cache)
        and all(type(part) in PLAIN for part in _projections(model))
        and model.config.hidden_act == "silu"
        and model.config.rope_parameters["rope_type"] in STEADY_ROTATIONS
    )


class Past(NamedTuple):
    """The KV cache of some rows of a batch; a batch's pasts follow each other."""

    cache: DynamicCache  # right-aligned
    rows: int
    # ``[rows, 1, 1, keys]``, added to attention scores; ``keys`` is at least the maximum that the
    # rows will reach. None hides nothing.
    bias: Tensor | None


class FusedDecoder:
    """A decoder for a model that :func:`has_fused_step`, on caches that its forward pass filled.

    ``steps`` is the maximum number of steps to come; ``eight_bits`` multiplies with an 8-bit copy
    of the weights, on a CPU.
    """

    def __init__(self, model: PreTrainedModel, steps: int, *, eight_bits: bool = False) -> None:
        decoder: Any = model.model
        if eight_bits:
            copy = Copy.EIGHT_BITS
        elif steps >= PACKED_STEPS and bool(decoder.embed_tokens.weight.requires_grad):
            # For trained weights the copy takes no more memory than their gradients will.
            copy = Copy.LAID_OUT
        else:
            copy = Copy.NONE
        self._layers = [_Layer(layer, copy) for layer in decoder.layers]
        self._embeddings: Tensor = decoder.embed_tokens.weight
        self._head = _Projection(cast(Any, model).lm_head, copy=copy)
        self._norm, self._rotate = decoder.norm, decoder.rotary_emb
        self._cos = self._sin = self._embeddings[:0]
        self._pasts: list[Past] = []

    def attach(self, pasts: Sequence[Past], most: int) -> None:
        """Continue these caches; ``most`` is the maximum tokens that any row will reach."""
        self._pasts = list(pasts)
        for number, layer in enumerate(self._layers):
            layer.pasts = [cast(GrowingLayer, past.cache.layers[number]) for past in pasts]
        if most > len(self._cos):
            positions = torch.arange(most, device=self._embeddings.device)
            self._cos, self._sin = rotations(self._rotate, self._embeddings, positions)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return logits ``[B, V]`` after int64 ``tokens [B, 1]`` at ``positions [B]``."""
        hidden = embedding(tokens.squeeze(-1), self._embeddings)
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        row_biases = []
        begin = 0
        for past, rows, bias in self._pasts:
            length = past.get_seq_length() + 1
            span = slice(begin, begin + rows)
            row_biases.append((span, None if bias is None else bias[..., :length]))
            begin += rows
        for layer in self._layers:
            hidden = layer.step(hidden, cos, sin, row_biases)
        return self._head(normalized(hidden, self._norm))


def rotations(rotate: Any, like: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and signed sines ``[T, D]``, in the dtype of ``like``.

    A head ``x`` is rotated to ``x * cos + x.roll(D / 2) * sin``.
    """
    cos, sin = (each[0] for each in rotate(like, positions[None]))
    half = sin.shape[-1] // 2
    return cos, torch.cat((-sin[:, :half], sin[:, half:]), -1)


def head_norm(attention: Any) -> Tensor | None:
    """Return the weights of Qwen 3's normalization, a row for each head of Q and K."""
    if getattr(attention, "q_norm", None) is None:
        return None
    pairs = (attention.q_norm, attention.q_proj), (attention.k_norm, attention.k_proj)
    size = attention.head_dim
    return torch.cat([norm.weight.expand(len(p.weight) // size, -1) for norm, p in pairs])


class Copy(Enum):
    """The copy of the weights that a step multiplies with; none reads them in place."""

    NONE = auto()
    LAID_OUT = auto()
    EIGHT_BITS = auto()


class _Projection:
    """Linear layers as one matrix, whose call costs half of a module's call."""

    def __init__(self, *parts: nn.Linear, copy: Copy) -> None:
        biases = [part.bias for part in parts]
        self.weight: Any = _joined([part.weight for part in parts])
        self.bias = None if biases[0] is None else _joined(biases)
        self._product: Callable[[Tensor, Any, Tensor | None], Tensor] = product_of(self.weight)
        if copy is Copy.EIGHT_BITS:
            self.weight, self._product = rounded(self.weight), rounded_product
        elif copy is Copy.LAID_OUT and (prepacked := packed(self.weight)) is not None:
            self.weight, self._product = prepacked, packed_product
        self._fuses_sums = self._product is torch.nn.functional.linear

    def __call__(self, x: Tensor) -> Tensor:
        return self._product(x, self.weight, self.bias)

    def added_to(self, hidden: Tensor, x: Tensor) -> Tensor:
        return added(hidden, x, self) if self._fuses_sums else hidden + self(x)


def added(hidden: Tensor, x: Tensor, layer: Any) -> Tensor:
    """Return ``hidden + x W^T + b``."""
    total = torch.addmm(hidden, x, layer.weight.t())
    return total if layer.bias is None else total + layer.bias


def _joined(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))


class _Layer:
    """A decoder layer's weights and past, looked up once; Q, K and V are one matrix."""

    def __init__(self, layer: Any, copy: Copy) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.pasts: list[GrowingLayer] = []
        self._size: int = attention.head_dim
        self._scale: float = attention.scaling
        self._groups: int = attention.num_key_value_groups
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        heads, kv_heads = (len(part.weight) // self._size for part in parts[:2])
        self._heads, self._rotated = heads, heads + kv_heads
        self._qkv = _Projection(*parts, copy=copy)
        self._o, self._gate, self._up, self._down = (
            _Projection(part, copy=copy)
            for part in (attention.o_proj, mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )
        self._head_norm = head_norm(attention)
        if self._head_norm is not None:
            self._epsilon = attention.q_norm.variance_epsilon

    def step(
        self, hidden: Tensor, cos: Tensor, sin: Tensor, looks: Sequence[tuple[slice, Tensor | None]]
    ) -> Tensor:
        """Map ``[B, hidden]``, given ``cos, sin [B, 1, D]`` and each past's rows and bias."""
        rows, size = len(hidden), self._size
        x = self._qkv(normalized(hidden, self._before)).view(rows, -1, size)
        qk, value = x[:, : self._rotated], x[:, self._rotated :]
        if self._head_norm is not None:
            qk = rms_norm(qk, (size,), None, self._epsilon) * self._head_norm
        qk = torch.addcmul(qk * cos, qk.roll(size // 2, -1), sin)
        query = qk[:, : self._heads].reshape(rows, -1, self._groups, size)
        outputs = []
        for past, (span, bias) in zip(self.pasts, looks, strict=True):
            keys, values = past.update(qk[span, self._heads :, None], value[span, :, None])
            outputs.append(_attend(query[span], keys, values, bias, self._scale))
        attended = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        hidden = self._o.added_to(hidden, attended.reshape(rows, -1))
        x = normalized(hidden, self._between)
        return self._down.added_to(hidden, silu(self._gate(x)) * self._up(x))


def _attend(
    query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, scale: float
) -> Tensor:
    """Attend with queries ``[B, kv heads, group, D]`` that share a key-value head.

    On a CPU plain products are two to three times faster than the attention kernel for few queries.
    """
    if query.device.type != "cpu":
        return scaled_dot_product_attention(query, keys, values, attn_mask=bias, scale=scale)
    scores = torch.matmul(query * scale, keys.transpose(2, 3))
    if bias is not None:
        scores = scores + bias
    return torch.matmul(scores.softmax(-1, dtype=torch.float32).to(values.dtype), values)


def _projections(model: PreTrainedModel) -> list[nn.Module]:
    layers: Any = cast(Any, model).model.layers
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    attention = [getattr(layer.self_attn, name) for layer in layers for name in names]
    mlp = [getattr(x.mlp, name) for x in layers for name in ("gate_proj", "up_proj", "down_proj")]
    return [*attention, *mlp, cast(Any, model).lm_head]
