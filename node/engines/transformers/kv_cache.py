"""A key-value cache that is written in place, and whose rows leave and join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

from node.policy.policy import Policy

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


def alike(lengths: Sequence[int], worth: int, rows: Sequence[int] | None = None) -> list[list[int]]:
    """Which texts to pad to one length, as lists of their indices.

    Texts at most half as long as the longest are put apart from it where that saves ``worth``
    tokens of padding, so there are few lists. One list is in the order of the texts.

    Args:
        rows: how many rows each text has; left out, one.
    """
    rows = rows or [1] * len(lengths)
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    lists: list[list[int]] = [[]]
    left = sum(rows)
    for n in order:
        longest = lengths[lists[-1][0]] if lists[-1] else lengths[n]
        if 2 * lengths[n] <= longest and left * (longest - lengths[n]) >= worth:
            lists.append([])
        lists[-1].append(n)
        left -= rows[n]
    return lists if len(lists) > 1 else [list(range(len(lengths)))]


class ReadPrompts(NamedTuple):
    """Prompts that were read together, left-padded.

    Attributes:
        which: their indices.
        cache: of ``P`` rows.
        logits: ``[P, V]``, of the tokens after them.
        lengths: int64 ``[P]``.
    """

    which: list[int]
    cache: DynamicCache
    logits: Tensor
    lengths: Tensor


def read(policy: Policy, prompts: Sequence[Sequence[int]], worth: int) -> list[ReadPrompts]:
    """Read each prompt once, those of similar length together.

    Args:
        prompts: token ids, none of them empty.
        worth: tokens of padding that are worth another forward pass.
    """
    return [
        _together(policy, chosen, [prompts[n] for n in chosen])
        for chosen in alike([len(prompt) for prompt in prompts], worth)
    ]


def logits_after(
    policy: Policy, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: DynamicCache
) -> Tensor:
    """Logits ``[B, V]`` after the tokens ``[B, t]``, which the cache takes in."""
    output: Any = policy.model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=positions,
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    return cast(Tensor, output.logits[:, -1])


def _together(policy: Policy, which: list[int], prompts: Sequence[Sequence[int]]) -> ReadPrompts:
    fill, longest, device = policy.pad_id, max(map(len, prompts)), policy.device
    padded = [[fill] * (longest - len(each)) + list(each) for each in prompts]
    lengths = torch.tensor([len(each) for each in prompts], device=device)
    positions = torch.arange(longest, device=device) - (longest - lengths)[:, None]
    mask = (positions >= 0).long() if bool((positions < 0).any()) else None
    cache = growing_cache(policy.model.config)
    ids = torch.tensor(padded, device=device)
    logits = logits_after(policy, ids, mask, positions.clamp_(0), cache)
    return ReadPrompts(which, cache, logits, lengths)


@dataclass(frozen=True, slots=True)
class RestingRow:
    """What was read of a row; the last token that it sampled was not.

    Attributes:
        cache: of rows that came to rest together, aligned on the right.
        line: which of them.
        length: tokens that were read.
    """

    cache: DynamicCache
    line: int
    length: int


class Continued(NamedTuple):
    """A row that is gone on with, and the token ids that it reads next, its last one first."""

    row: RestingRow
    ids: Sequence[int]


def set_aside(cache: DynamicCache, lines: Tensor, read: Tensor, over: Tensor) -> list[RestingRow]:
    """Copy some rows out of a cache that can be joined, in their order.

    Args:
        lines: int64 ``[R]``, which ones.
        read: int64 ``[R]``, tokens of each in the cache.
        over: int64 ``[R]``, of those the last ones that are not kept.
    """
    kept = gathered([Share(cache, lines, cache.get_seq_length() - int(read.max()))])
    aligned(kept, over)
    return [RestingRow(kept, line, n) for line, n in enumerate((read - over).tolist())]


def read_on(policy: Policy, continued: Sequence[Continued], worth: int) -> list[ReadPrompts]:
    """Read what follows in each row, those with as much to read together.

    Args:
        worth: tokens of padding that are worth another forward pass.
    """
    return [
        _resting_rows_together(policy, chosen, [continued[n] for n in chosen])
        for chosen in alike([len(each.ids) for each in continued], worth)
    ]


def _resting_rows_together(
    policy: Policy, which: list[int], rows: Sequence[Continued]
) -> ReadPrompts:
    shares, order = _shares([row for row, _ in rows])
    rows, device = [rows[n] for n in order], policy.device
    cache = gathered(shares)
    before = cache.get_seq_length()
    read = torch.tensor([row.length for row, _ in rows], device=device)
    more = torch.tensor([len(ids) for _, ids in rows], device=device)
    longest = int(more.max())
    padded = [[*ids, *[policy.pad_id] * (longest - len(ids))] for _, ids in rows]
    columns = torch.arange(before + longest, device=device)
    own = (columns >= before - read[:, None]) & (columns < before + more[:, None])
    positions = read[:, None] + torch.arange(longest, device=device)
    ends = more - 1
    kept = torch.unique(ends)
    output: Any = policy.model(
        input_ids=torch.tensor(padded, device=device),
        attention_mask=own.long(),
        position_ids=positions.clamp_(max=policy.context_length - 1),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=kept,
    )
    # Some models know no such argument, and tell of every token.
    places = ends if output.logits.shape[1] == longest else torch.searchsorted(kept, ends)
    logits = output.logits[torch.arange(len(rows), device=device), places]
    aligned(cache, longest - more)
    return ReadPrompts([which[n] for n in order], cache, logits, read + more)


def _shares(rows: Sequence[RestingRow]) -> tuple[list[Share], list[int]]:
    """The rows by the caches that they lie in, and the order in which they come so."""
    together: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        together.setdefault(id(row.cache), []).append(number)
    shares = []
    for numbers in together.values():
        cache = rows[numbers[0]].cache
        lines = torch.tensor([rows[n].line for n in numbers], device=_device(cache))
        longest = max(rows[n].length for n in numbers)
        shares.append(Share(cache, lines, cache.get_seq_length() - longest))
    return shares, [n for numbers in together.values() for n in numbers]


def _device(cache: DynamicCache) -> torch.device:
    keys = cast(GrowingLayer, cache.layers[0]).keys
    assert keys is not None
    return keys.device
