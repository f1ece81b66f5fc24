"""One decoding step of a Llama or Qwen model in a third of the kernel launches.

With small models, and on GPUs with middle-sized ones, decoding costs what it costs to launch
kernels. This step reads the model's own weights in place and computes what its forward does for
one token a row: normalisation and rotation are one kernel each, and grouped key-value heads are
never repeated.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear, rms_norm, scaled_dot_product_attention, silu
from transformers import (
    DynamicCache,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
    Qwen3ForCausalLM,
)

from node.engines.growing_cache import GrowingLayer

ARCHITECTURES = (LlamaForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM)


def fits(model: PreTrainedModel, cache: DynamicCache) -> bool:
    """Whether the step computes exactly what ``model.forward`` does.

    Subclasses, adapters, quantised weights, sliding windows and rotations that depend on the
    sequence's length are left to the model's own forward.
    """
    return (
        type(model) in ARCHITECTURES
        and all(type(layer) is GrowingLayer for layer in cache.layers)
        and all(type(part) is nn.Linear for part in _projections(model))
        and model.config.hidden_act == "silu"
        and model.config.rope_parameters["rope_type"] in ("default", "linear", "llama3", "yarn")
    )


class FusedDecoder:
    """Decodes behind a cache that ``model.forward`` has filled.

    Args:
        model: one that :func:`fits`.
        cache: keys and values so far, extended by every step.
        length: positions that will be needed at most.
    """

    def __init__(self, model: PreTrainedModel, cache: DynamicCache, length: int) -> None:
        decoder: Any = model.model
        self._layers = [
            _Layer(layer, cast(GrowingLayer, past))
            for layer, past in zip(decoder.layers, cache.layers, strict=True)
        ]
        self._embeddings: Tensor = decoder.embed_tokens.weight
        self._head: Tensor = cast(Any, model).lm_head.weight
        self._norm, self._epsilon = decoder.norm.weight, decoder.norm.variance_epsilon
        cos, sin = decoder.rotary_emb(
            self._embeddings, torch.arange(length, device=model.device)[None]
        )
        half = sin.shape[-1] // 2
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)

    def step(self, tokens: Tensor, positions: Tensor, bias: Tensor | None) -> Tensor:
        """Logits ``[B, V]`` after one more token a row.

        Args:
            tokens: int64 ``[B, 1]``.
            positions: int64 ``[B]``, or ``[1]`` where all rows are at the same one.
            bias: ``[B, 1, 1, keys]``, added to the attention scores; None hides nothing.
        """
        hidden = embedding(tokens.squeeze(-1), self._embeddings)
        cos, sin = self._cos[positions, None], self._sin[positions, None]
        for layer in self._layers:
            hidden = layer.step(hidden, cos, sin, bias)
        return linear(rms_norm(hidden, hidden.shape[-1:], self._norm, self._epsilon), self._head)


class _Layer:
    """A decoder layer's weights and past, looked up once."""

    def __init__(self, layer: Any, past: GrowingLayer) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self._past = past
        self._size: int = attention.head_dim
        self._scale: float = attention.scaling
        self._groups: int = attention.num_key_value_groups
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._q, self._k, self._v, self._o = (
            (part.weight, part.bias)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self._q_norm = getattr(attention, "q_norm", None)
        self._k_norm = getattr(attention, "k_norm", None)
        self._gate, self._up, self._down = (
            (part.weight, part.bias) for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )

    def step(self, hidden: Tensor, cos: Tensor, sin: Tensor, bias: Tensor | None) -> Tensor:
        """``[B, hidden]`` in and out; ``cos`` and ``sin`` are ``[B or 1, 1, D]``."""
        rows, size = len(hidden), self._size
        x = _normalised(hidden, self._before)
        query = _normalised(linear(x, *self._q).view(rows, -1, size), self._q_norm)
        key = _normalised(linear(x, *self._k).view(rows, -1, size), self._k_norm)
        value = linear(x, *self._v).view(rows, -1, 1, size)
        both = torch.cat((query, key), 1)
        both = torch.addcmul(both * cos, both.roll(size // 2, -1), sin)
        heads = query.shape[1]
        keys, values = self._past.update(both[:, heads:, None], value)
        mixed = scaled_dot_product_attention(
            both[:, :heads].view(rows, -1, self._groups, size),
            keys,
            values,
            attn_mask=bias,
            scale=self._scale,
        )
        hidden = hidden + linear(mixed.reshape(rows, -1), *self._o)
        x = _normalised(hidden, self._between)
        return hidden + linear(silu(linear(x, *self._gate)) * linear(x, *self._up), *self._down)


def _normalised(x: Tensor, norm: Any) -> Tensor:
    return x if norm is None else rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _projections(model: PreTrainedModel) -> list[nn.Module]:
    """Every matrix that the step multiplies with."""
    layers: Any = cast(Any, model).model.layers
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    attention = [getattr(layer.self_attn, name) for layer in layers for name in names]
    mlp = [getattr(x.mlp, name) for x in layers for name in ("gate_proj", "up_proj", "down_proj")]
    return [*attention, *mlp, cast(Any, model).lm_head]
