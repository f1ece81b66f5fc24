"""A key-value cache that is written in place, and whose rows leave and join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

SPARE_TOKENS = 64


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """Keeps spare room behind the keys and values, so that most tokens copy only themselves.

    ``DynamicLayer`` copies the whole past at every token, which is the largest single cost of
    decoding with a small model.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room: tuple[Tensor, Tensor] | None = None
        self._shown: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append ``[B, H, t, D]`` keys and values; returns all of them, as views."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        # Inherited operations put other keys, of other rows, into the place of these views.
        replaced = self.keys is not self._shown
        if self._room is None or replaced or end > self._room[0].shape[-2]:
            room = _room(key_states, end), _room(value_states, end)
            if self.keys is not None and self.values is not None:
                room[0][..., :start, :] = self.keys
                room[1][..., :start, :] = self.values
            self._room = room
            self.is_initialized = True
        keys, values = self._room
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        return self._show(end)

    def _show(self, end: int) -> tuple[Tensor, Tensor]:
        assert self._room is not None
        self.keys, self.values = (each[..., :end, :] for each in self._room)
        self._shown = self.keys
        return self.keys, self.values

    def shift(self, by: Tensor) -> None:
        """Move the tokens of each row to the right, over its last ones.

        Args:
            by: int64 ``[B]``, how many places; as many first ones become the row's first token.
        """
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        length = keys.shape[-2]
        columns = torch.arange(length, device=keys.device)
        places = (columns - by[:, None]).clamp_(0)[:, None, :, None]
        room = _room(keys, length), _room(values, length)
        for moved, past in zip(room, (keys, values), strict=True):
            moved[..., :length, :] = past.take_along_dim(places, -2)
        self._room = room
        self._show(length)

    @classmethod
    def of(
        cls, parts: Sequence[tuple[GrowingLayer, Share]], rows: int, tokens: int
    ) -> GrowingLayer:
        """A layer of ``rows`` rows and ``tokens`` tokens of others, aligned on the right."""
        layer = cls()
        keys, values = (
            _gathered([(getattr(part, name), share) for part, share in parts], rows, tokens)
            for name in ("keys", "values")
        )
        layer._room = keys, values
        layer._show(tokens)
        layer.is_initialized = True
        return layer


@dataclass(frozen=True, slots=True)
class Share:
    """Some rows of a cache.

    Attributes:
        rows: int64 ``[b]``, which ones; a row may be named several times.
        first: their first token that is taken.
    """

    cache: DynamicCache
    rows: Tensor
    first: int


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """The model's own cache with its plain attention layers written in place.

    Layers of another kind (sliding window, linear attention) stay the model's own.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache


def joinable(cache: DynamicCache) -> bool:
    """Whether rows of several such caches can be put into one."""
    return bool(cache.layers) and all(type(layer) is GrowingLayer for layer in cache.layers)


def gathered(shares: Sequence[Share]) -> DynamicCache:
    """One cache of all the rows, one share behind the other and aligned on the right.

    What shorter rows lack on the left is zero, and has to be hidden from attention. Where the
    caches are not :func:`joinable` there can be only one share, of whole rows in their order.
    """
    first = shares[0].cache
    if not joinable(first):
        (share,) = shares
        first.reorder_cache(cast(torch.LongTensor, share.rows))
        return first
    rows = sum(len(share.rows) for share in shares)
    tokens = max(share.cache.get_seq_length() - share.first for share in shares)
    whole = DynamicCache()
    whole.layers = [
        GrowingLayer.of(
            [(cast(GrowingLayer, share.cache.layers[n]), share) for share in shares], rows, tokens
        )
        for n in range(len(first.layers))
    ]
    return whole


def aligned(cache: DynamicCache, over: Tensor) -> None:
    """Align rows of a :func:`joinable` cache on the right, whose last tokens are not their own.

    Args:
        over: int64 ``[B]``, tokens behind a row's own.
    """
    if bool(over.any()):
        for layer in cache.layers:
            cast(GrowingLayer, layer).shift(over)


def _gathered(parts: Sequence[tuple[Tensor, Share]], rows: int, tokens: int) -> Tensor:
    whole = _room(parts[0][0], tokens, rows)
    places = iter(torch.split(whole, [len(share.rows) for _, share in parts]))
    for past, share in parts:
        taken, place = past[..., share.first :, :], next(places)
        begin = tokens - taken.shape[-2]
        place[..., :begin, :] = 0.0
        place[..., begin:tokens, :] = taken[share.rows]
    return whole


def _room(like: Tensor, tokens: int, rows: int | None = None) -> Tensor:
    """Uninitialised, for so many tokens and some more."""
    spare = max(SPARE_TOKENS, tokens // 2)
    shape = (rows or len(like), like.shape[1], tokens + spare, like.shape[-1])
    return torch.empty(shape, dtype=like.dtype, device=like.device)
