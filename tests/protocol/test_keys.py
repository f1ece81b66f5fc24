"""Everybody derives the same numbers, and nobody can steer them."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.announcement import (
    AUTHORS_A_SHARD,
    depth_for,
    depth_of,
    dht_key_of,
    epoch_of,
    heldout_seed,
    reader_paths,
    record_key,
    shard_of,
    shard_on,
    task_seed,
)
from protocol.codec import MAX_DEPTH
from protocol.identity import Identity
from tests.protocol.samples import ALICE, BOB, SWARM

epochs = st.integers(0, 2**40)
depths = st.integers(0, MAX_DEPTH - 1)


def test_an_epoch_begins_with_its_first_instant() -> None:
    assert [epoch_of(t, 60.0) for t in (0.0, 59.999, 60.0, 119.0, 120.0)] == [0, 0, 1, 1, 2]


def test_an_epoch_is_the_quotient_rounded_and_not_a_floored_remainder() -> None:
    assert epoch_of(0.3, 0.1) == 2
    assert epoch_of(1.0, 0.1) == 10  # 1.0 // 0.1 would be 9


@given(epochs, depths)
def test_a_shard_is_one_of_its_depth_and_a_half_of_the_one_above(epoch: int, depth: int) -> None:
    shard = shard_of(ALICE.author, epoch, depth)
    assert 0 <= shard < 1 << depth
    assert shard_of(ALICE.author, epoch, depth + 1) >> 1 == shard


def test_authors_spread_over_the_shards_and_move_every_epoch() -> None:
    counts = Counter(shard_of(ALICE.author, epoch, 3) for epoch in range(800))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 150


@given(st.floats(0.0, 1e12))
def test_the_depth_suits_sixteen_authors_a_shard(authors: float) -> None:
    depth = depth_for(authors)
    assert 0.0 <= depth <= MAX_DEPTH
    if 0.0 < depth < MAX_DEPTH:
        assert authors / 2.0**depth == pytest.approx(AUTHORS_A_SHARD)


@given(st.sampled_from([ALICE, BOB]), epochs, st.floats(0.0, MAX_DEPTH))
def test_an_author_takes_one_of_the_whole_depths_around(
    identity: Identity, epoch: int, depth: float
) -> None:
    taken = depth_of(identity.author, epoch, depth)
    assert math.floor(depth) <= taken <= math.ceil(depth)


def test_as_many_authors_take_the_greater_depth_as_its_fraction_tells() -> None:
    taken = Counter(depth_of(ALICE.author, epoch, 3.25) for epoch in range(4000))
    assert set(taken) == {3, 4}
    assert 0.22 < taken[4] / 4000 < 0.28


@given(epochs)
def test_a_readers_two_paths_part_at_the_first_bit(epoch: int) -> None:
    one, other = reader_paths(ALICE.author, epoch, b"secret")
    assert shard_on(one, 0) == shard_on(other, 0) == 0
    assert {shard_on(one, 1), shard_on(other, 1)} == {0, 1}


def test_a_readers_paths_hang_on_its_secret() -> None:
    draws = {reader_paths(ALICE.author, 1, bytes([n])) for n in range(20)}
    assert len({path for pair in draws for path in pair}) == 40


def test_task_seeds_differ_by_author_epoch_and_index() -> None:
    seeds = {
        task_seed(author, epoch, index)
        for author in (ALICE.author, BOB.author)
        for epoch in range(20)
        for index in range(20)
    }
    assert len(seeds) == 800
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_held_out_seeds_differ_by_family_and_number() -> None:
    seeds = {heldout_seed(env, number) for env in ("gcd", "lcm") for number in range(100)}
    assert len(seeds) == 200
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_a_record_key_names_swarm_epoch_and_shard() -> None:
    assert record_key(SWARM, 5, 4, 3) == f"swarm-node/2/{SWARM.hex()}/5/4/3"


def test_the_hashed_key_is_the_one_that_hivemind_computes() -> None:
    """Taken from ``hivemind.dht.routing.DHTID.generate`` of hivemind 1.1.12."""
    key = record_key(bytes(32), 3, 0, 0)
    assert dht_key_of(key).hex() == "88a88c86b04f8ee25a8b56badd1c21aabff8e757"
