"""A key-value cache that is written in place."""

from __future__ import annotations

from typing import Any

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

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append ``[B, H, t, D]`` keys and values; returns all of them, as views."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        if self._room is None or end > self._room[0].shape[-2]:
            self._room = (
                self._roomier(self.keys, key_states, end),
                self._roomier(self.values, value_states, end),
            )
            self.is_initialized = True
        keys, values = self._room
        keys[..., start:end, :] = key_states
        values[..., start:end, :] = value_states
        self.keys, self.values = keys[..., :end, :], values[..., :end, :]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Keep (or repeat) the given rows."""
        super().reorder_cache(beam_idx)
        self._room = None

    @staticmethod
    def _roomier(past: Tensor | None, new: Tensor, end: int) -> Tensor:
        rows, heads, _, size = new.shape
        room = torch.empty(
            (rows, heads, end + max(SPARE_TOKENS, end // 2), size),
            dtype=new.dtype,
            device=new.device,
        )
        if past is not None:
            room[..., : past.shape[-2], :] = past
        return room


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """The model's own cache with its plain attention layers written in place.

    Layers of another kind (sliding window, linear attention) stay the model's own.
    """
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache
