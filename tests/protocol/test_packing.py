"""Groups are spread over frames, none over the manifest's size, none lost."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import CodecLimits, decode, encode
from protocol.frame import item_count, pack, seal, without_tokens
from protocol.rollout import Group, Tokens
from tests.protocol.samples import ALICE, SWARM, batch, completion, group, plain_wire
from tests.protocol.strategies import groups as any_group

SIZE = 4096


def wordy(index: int, length: int = 40) -> Group:
    """Completions of random words and ids: about as compressible as real ones."""
    draw = random.Random(index)
    texts = [" ".join(draw.choices(["two", "six", "is", "the"], k=length)) for _ in range(4)]
    ids = [tuple(draw.randrange(150_000) for _ in range(length)) for _ in texts]
    values = [tuple(-draw.random() for _ in range(length)) for _ in texts]
    made = [
        completion(text, 0.0, Tokens(row, value, (1,) * length))
        for text, row, value in zip(texts, ids, values, strict=True)
    ]
    return group(index, *made)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("length", [1, 10, 40, 100])
def test_every_frame_keeps_to_its_size_and_every_group_is_kept(compress, length) -> None:
    groups = [wordy(index, length) for index in range(30)]
    packed = pack(groups, SIZE, compress=compress)
    assert [g for frame in packed.frames for g in frame] + list(packed.oversize) == groups
    for frame in packed.frames:
        assert len(seal(batch(*frame), ALICE, SWARM, compress=compress)) <= SIZE


@given(st.lists(any_group, max_size=8, unique_by=lambda g: (g.epoch, g.index)))
def test_groups_of_any_kind_keep_to_the_size(groups: list[Group]) -> None:
    packed = pack(groups, 2048)
    for frame in packed.frames:
        assert len(seal(batch(*frame), ALICE, SWARM)) <= 2048
    assert sum(map(len, packed.frames)) + len(packed.oversize) == len(groups)


def test_compression_leaves_room_for_more() -> None:
    groups = [wordy(index) for index in range(30)]
    assert len(pack(groups, SIZE).frames) < len(pack(groups, SIZE, compress=False).frames)


def test_a_group_too_large_for_any_frame_is_named_and_fits_as_text() -> None:
    large = wordy(0, 400)
    assert pack([large], SIZE).oversize == (large,)
    assert pack([without_tokens(large)], SIZE).frames == ((without_tokens(large),),)


def test_only_the_tokens_are_dropped() -> None:
    kept = without_tokens(wordy(0))
    assert kept.rewards == wordy(0).rewards
    assert [c.text for c in kept.completions] == [c.text for c in wordy(0).completions]
    assert all(s.tokens is None for c in kept.completions for s in c.segments)


def test_items_are_counted_as_the_decoder_counts_them() -> None:
    wire = plain_wire(batch(wordy(0), replace(wordy(1), index=2)))
    exactly = CodecLimits(1 << 20, 9, item_count(wire), 1 << 20, 1 << 20)
    assert decode(encode(wire), exactly) == wire
    with pytest.raises(ValueError, match="items"):
        decode(encode(wire), replace(exactly, items=exactly.items - 1))


def test_nothing_packs_into_nothing() -> None:
    assert pack([], SIZE).frames == ()
