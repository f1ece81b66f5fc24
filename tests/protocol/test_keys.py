"""Everybody derives the same numbers, and nobody can steer them."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from protocol.keys import (
    dht_key_of,
    epoch_of,
    heldout_seed,
    reader_shards,
    record_key,
    shard_of,
    task_seed,
)
from tests.protocol.samples import ALICE, BOB, SWARM

epochs = st.integers(0, 2**40)
powers = st.sampled_from([1, 2, 4, 64, 1 << 16])


def test_an_epoch_begins_with_its_first_instant() -> None:
    assert [epoch_of(t, 60.0) for t in (0.0, 59.999, 60.0, 119.0, 120.0)] == [0, 0, 1, 1, 2]


def test_an_epoch_is_the_quotient_rounded_and_not_a_floored_remainder() -> None:
    assert epoch_of(0.3, 0.1) == 2
    assert epoch_of(1.0, 0.1) == 10  # 1.0 // 0.1 would be 9


@given(epochs, powers)
def test_a_shard_is_within_the_count(epoch: int, shards: int) -> None:
    assert 0 <= shard_of(ALICE.author, epoch, shards) < shards


def test_authors_spread_over_the_shards_and_move_every_epoch() -> None:
    counts = Counter(shard_of(ALICE.author, epoch, 8) for epoch in range(800))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 150


@given(epochs, powers, st.integers(1, 4))
def test_a_reader_draws_distinct_shards(epoch: int, shards: int, count: int) -> None:
    drawn = reader_shards(ALICE.author, epoch, b"secret", shards, count)
    assert len(set(drawn)) == len(drawn) == min(count, shards)
    assert all(0 <= shard < shards for shard in drawn)


def test_a_readers_shards_hang_on_its_secret() -> None:
    draws = {reader_shards(ALICE.author, 1, bytes([n]), 1 << 16) for n in range(20)}
    assert len(draws) == 20


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
    assert record_key(SWARM, 5, 8, 3) == f"swarm-node/1/{SWARM.hex()}/5/8/3"


def test_the_hashed_key_is_the_one_that_hivemind_computes() -> None:
    """Taken from ``hivemind.dht.routing.DHTID.generate`` of hivemind 1.1.12."""
    key = record_key(bytes(32), 3, 1, 0)
    assert dht_key_of(key).hex() == "4e47d92b0a4ecc0b2208dc0c4e03c2f652ba8435"
