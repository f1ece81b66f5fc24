"""Which groups go into which frame, so that none is over the manifest's size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import zstandard

from protocol.batch import group_to_wire
from protocol.codec import encode
from protocol.frame import OVERHEAD_BYTES
from protocol.limits import MAX_GROUPS, MAX_ITEMS, PLAIN_RATIO
from protocol.rollout import Group

_BATCH_BYTES = 512
"""Bound of a body's bytes and items beside its groups: fields, model name and array head."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Groups by frame, in the order given, and those that fit into no frame."""

    frames: tuple[tuple[Group, ...], ...]
    oversize: tuple[Group, ...]


def pack(groups: Iterable[Group], max_frame_bytes: int, *, compress: bool = True) -> Packing:
    """Fills one frame after the other.

    A group counts with its own compressed size, a little more than it adds to a common frame.
    """
    frames: list[list[Group]] = []
    oversize: list[Group] = []
    room = _Size(0, 0, 0)
    whole = _Size(
        max_frame_bytes - OVERHEAD_BYTES - _BATCH_BYTES,
        PLAIN_RATIO * max_frame_bytes - _BATCH_BYTES,
        MAX_ITEMS - _BATCH_BYTES,
    )
    for group in groups:
        size = _measure(group, compress)
        if not size.within(whole):
            oversize.append(group)
            continue
        if not size.within(room) or len(frames[-1]) >= MAX_GROUPS:
            frames.append([])
            room = whole
        frames[-1].append(group)
        room = room.less(size)
    return Packing(tuple(map(tuple, frames)), tuple(oversize))


def without_tokens(group: Group) -> Group:
    """The group as text alone: for one that is too large with its token ids."""
    completions = tuple(
        replace(c, segments=tuple(replace(s, tokens=None) for s in c.segments))
        for c in group.completions
    )
    return replace(group, completions=completions)


@dataclass(frozen=True, slots=True)
class _Size:
    """Bytes on the wire, plain bytes and items of a group, or room for them."""

    wire: int
    plain: int
    items: int

    def within(self, room: _Size) -> bool:
        return self.wire <= room.wire and self.plain <= room.plain and self.items <= room.items

    def less(self, size: _Size) -> _Size:
        return _Size(self.wire - size.wire, self.plain - size.plain, self.items - size.items)


def _measure(group: Group, compress: bool) -> _Size:
    wire = group_to_wire(group)
    plain = encode(wire)
    size = len(zstandard.ZstdCompressor(level=3).compress(plain)) if compress else len(plain)
    return _Size(min(size, len(plain)), len(plain), item_count(wire))


def item_count(value: object) -> int:
    """Items of a value as the decoder counts them."""
    if isinstance(value, dict):
        return 1 + len(value) + sum(map(item_count, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(item_count, value))
    return 1
