"""Texts of different lengths, put together so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Sequence


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
