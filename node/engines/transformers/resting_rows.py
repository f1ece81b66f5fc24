"""Rows that have ended a turn, kept as they are until another one follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from transformers import DynamicCache

from node.engines.transformers.kv_cache import GrowingLayer, Share, aligned, gathered
from node.engines.transformers.length_buckets import alike
from node.engines.transformers.prefill import ReadPrompts
from node.policy.policy import Policy


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
        _together(policy, chosen, [continued[n] for n in chosen])
        for chosen in alike([len(each.ids) for each in continued], worth)
    ]


def _together(policy: Policy, which: list[int], rows: Sequence[Continued]) -> ReadPrompts:
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
