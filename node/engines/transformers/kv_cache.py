"""KV cache written in place, and prefill into it; rows join, leave and pause."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from node.engines.engine import Prompts
from node.policy.policy import Policy

SPARE_TOKENS = 64
MOST_READ = 1 << 14  # tokens of a forward pass over prompts: with more, only its memory grows


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A cache layer with spare room: ``DynamicLayer`` copies the whole past per token."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._room: tuple[Tensor, Tensor] | None = None
        self._shown: Tensor | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values ``[B, H, t, D]``; return all of them, as views."""
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        # Inherited operations may have replaced these views with the keys of other rows.
        replaced = self.keys is not self._shown
        if self._room is None or replaced or end > self._room[0].shape[-2]:
            buffers = _room(key_states, end), _room(value_states, end)
            if self.keys is not None and self.values is not None:
                buffers[0][..., :start, :] = self.keys
                buffers[1][..., :start, :] = self.values
            self._room = buffers
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
        """Move row ``n``'s tokens ``by[n]`` right; copies of the first fill the left."""
        keys, values = self.keys, self.values
        assert keys is not None and values is not None
        length = keys.shape[-2]
        columns = torch.arange(length, device=keys.device)
        sources = (columns - by[:, None]).clamp_(0)[:, None, :, None]
        buffers = _room(keys, length), _room(values, length)
        for target, source in zip(buffers, (keys, values), strict=True):
            target[..., :length, :] = source.take_along_dim(sources, -2)
        self._room = buffers
        self._show(length)

    @classmethod
    def of(
        cls, parts: Sequence[tuple[GrowingLayer, CacheRows]], rows: int, tokens: int
    ) -> GrowingLayer:
        """Build a right-aligned layer ``[rows, H, tokens, D]`` from rows of other layers."""
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
class CacheRows:
    """Some rows of a cache."""

    cache: DynamicCache
    rows: Tensor  # int64 [b], row indices; they may repeat
    first: int  # first token to take


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """Create the model's own cache, with plain attention layers written in place."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(x) is DynamicLayer else x for x in cache.layers]
    return cache


def joinable(cache: DynamicCache) -> bool:
    """Return whether rows of several such caches can be combined."""
    return bool(cache.layers) and all(type(layer) is GrowingLayer for layer in cache.layers)


def gathered(shares: Sequence[CacheRows]) -> DynamicCache:
    """Combine rows into one right-aligned cache, share after share.

    Missing tokens on the left are zero and must be hidden from attention. A cache that is not
    :func:`joinable` allows only one share, of whole rows, and is reordered in place.
    """
    first = shares[0].cache
    if not joinable(first):
        (share,) = shares
        first.reorder_cache(cast(torch.LongTensor, share.rows))
        return first
    rows = sum(len(share.rows) for share in shares)
    tokens = max(share.cache.get_seq_length() - share.first for share in shares)
    combined = DynamicCache()
    combined.layers = [
        GrowingLayer.of(
            [(cast(GrowingLayer, share.cache.layers[n]), share) for share in shares], rows, tokens
        )
        for n in range(len(first.layers))
    ]
    return combined


def aligned(cache: DynamicCache, over: Tensor) -> None:
    """Drop the last ``over [B]`` tokens of a :func:`joinable` cache's rows, and align."""
    if bool(over.any()):
        for layer in cache.layers:
            cast(GrowingLayer, layer).shift(over)


def _gathered(parts: Sequence[tuple[Tensor, CacheRows]], rows: int, tokens: int) -> Tensor:
    combined = _room(parts[0][0], tokens, rows)
    targets = iter(torch.split(combined, [len(share.rows) for _, share in parts]))
    for past, share in parts:
        source, target = past[..., share.first :, :], next(targets)
        begin = tokens - source.shape[-2]
        target[..., :begin, :] = 0.0
        target[..., begin:tokens, :] = source[share.rows]
    return combined


def _room(like: Tensor, tokens: int, rows: int | None = None) -> Tensor:
    spare = max(SPARE_TOKENS, tokens // 2)
    shape = (rows or len(like), like.shape[1], tokens + spare, like.shape[-1])
    return torch.empty(shape, dtype=like.dtype, device=like.device)


def alike(lengths: Sequence[int], worth: int, rows: Sequence[int] | None = None) -> list[list[int]]:
    """Group texts to pad to one length, as lists of their indices.

    A text at most half as long as its list's longest starts a new list if that saves ``worth``
    padding tokens. ``rows`` counts the rows per text, by default one. A single list keeps the
    order.
    """
    rows = rows or [1] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    groups: list[list[int]] = [[]]
    remaining = sum(rows)
    for n in order:
        longest = lengths[groups[-1][0]] if groups[-1] else lengths[n]
        if 2 * lengths[n] <= longest and remaining * (longest - lengths[n]) >= worth:
            groups.append([])
        groups[-1].append(n)
        remaining -= rows[n]
    return groups if len(groups) > 1 else [list(range(len(lengths)))]


def _passes(lengths: Sequence[int], worth: int) -> Iterator[list[int]]:
    """Divide texts among forward passes; ``sys.maxsize`` for ``worth`` means a single one."""
    for indices in alike(lengths, worth) if lengths else ():
        limit = max(1, MOST_READ // max(lengths[n] for n in indices))
        limit = len(indices) if worth == sys.maxsize else limit
        yield from (indices[n : n + limit] for n in range(0, len(indices), limit))


class ReadPrompts(NamedTuple):
    """Prompts prefilled together, left-padded."""

    which: list[int]  # their indices
    cache: DynamicCache
    logits: Tensor  # ``[P, V]``, of the next token
    lengths: Tensor  # int64 [P]


def logits_after(
    policy: Policy, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache
) -> Tensor:
    """Return logits ``[B, V]`` after the tokens ``[B, t]``, which extend the cache."""
    output: Any = policy.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cast(Tensor, output.logits[:, -1])


def _prefill(policy: Policy, indices: list[int], prompts: Prompts) -> ReadPrompts:
    pad_id, longest, device = policy.pad_id, max(map(len, prompts)), policy.device
    padded = [[pad_id] * (longest - len(each)) + list(each) for each in prompts]
    lengths = torch.tensor([len(each) for each in prompts], device=device)
    positions = torch.arange(longest, device=device) - (longest - lengths)[:, None]
    mask = (positions >= 0).long() if bool((positions < 0).any()) else None
    cache = growing_cache(policy.model.config)
    ids = torch.tensor(padded, device=device)
    logits = logits_after(policy, ids, mask, positions.clamp_(0), cache)
    return ReadPrompts(indices, cache, logits, lengths)


def read_all(
    policy: Policy, prompts: Prompts, continued: Sequence[Continued], worth: int
) -> list[ReadPrompts]:
    """Prefill prompts and continued rows; the latter are numbered behind the former.

    Those of similar length are read together; see :func:`alike` for ``worth``.
    """
    batches = [
        _prefill(policy, indices, [prompts[n] for n in indices])
        for indices in _passes(list(map(len, prompts)), worth)
    ]
    for indices in _passes([len(each.ids) for each in continued], worth):
        batch = _prefill_continued(policy, indices, [continued[n] for n in indices])
        batches.append(batch._replace(which=[len(prompts) + n for n in batch.which]))
    return batches


@dataclass(frozen=True, slots=True)
class PausedRow:
    """A paused row; its last sampled token is not in the cache."""

    cache: DynamicCache  # of rows that were paused together, right-aligned
    line: int  # index in the cache
    length: int  # number of cached tokens


class Continued(NamedTuple):
    """A paused row to continue, and the ids to prefill, its last token first."""

    row: PausedRow
    ids: Sequence[int]


def paused_rows(cache: DynamicCache, lines: Tensor, read: Tensor, over: Tensor) -> list[PausedRow]:
    """Copy rows out of a :func:`joinable` cache, in order.

    All int64 ``[R]``: row indices, the cached tokens that were ``read``, and how many of the last
    ones to drop (``over``).
    """
    row_cache = gathered([CacheRows(cache, lines, cache.get_seq_length() - int(read.max()))])
    aligned(row_cache, over)
    return [PausedRow(row_cache, line, n) for line, n in enumerate((read - over).tolist())]


def _prefill_continued(policy: Policy, which: list[int], rows: Sequence[Continued]) -> ReadPrompts:
    device = policy.device
    cache_rows, order = _shares([row for row, _ in rows], device)
    rows = [rows[n] for n in order]
    cache = gathered(cache_rows)
    past = cache.get_seq_length()
    lengths = torch.tensor([row.length for row, _ in rows], device=device)
    new_tokens = torch.tensor([len(ids) for _, ids in rows], device=device)
    longest = int(new_tokens.max())
    padded = [[*ids, *[policy.pad_id] * (longest - len(ids))] for _, ids in rows]
    columns = torch.arange(past + longest, device=device)
    mask = (columns >= past - lengths[:, None]) & (columns < past + new_tokens[:, None])
    positions = lengths[:, None] + torch.arange(longest, device=device)
    ends = new_tokens - 1
    kept = torch.unique(ends)
    output: Any = policy.model(
        input_ids=torch.tensor(padded, device=device),
        attention_mask=mask.long(),
        position_ids=positions.clamp_(max=policy.context_length - 1),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=kept,
    )
    # Some models ignore ``logits_to_keep`` and return the logits of every token.
    end_index = ends if output.logits.shape[1] == longest else torch.searchsorted(kept, ends)
    logits = output.logits[torch.arange(len(rows), device=device), end_index]
    aligned(cache, longest - new_tokens)
    return ReadPrompts([which[n] for n in order], cache, logits, lengths + new_tokens)


def _shares(rows: Sequence[PausedRow], device: torch.device) -> tuple[list[CacheRows], list[int]]:
    by_cache: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        by_cache.setdefault(id(row.cache), []).append(number)
    cache_rows = []
    for indices in by_cache.values():
        cache = rows[indices[0]].cache
        lines = torch.tensor([rows[n].line for n in indices], device=device)
        longest = max(rows[n].length for n in indices)
        cache_rows.append(CacheRows(cache, lines, cache.get_seq_length() - longest))
    return cache_rows, [n for indices in by_cache.values() for n in indices]
