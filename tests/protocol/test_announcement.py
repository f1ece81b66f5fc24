"""A record says who offers what, for a bounded time, in a place that nobody can steer."""

import math
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from protocol.announcement import (
    AUTHORS_A_SHARD,
    Announcement,
    Offer,
    check_clock,
    depth_for,
    depth_of,
    dht_key_of,
    epoch_of,
    heldout_seed,
    offer_of,
    open_announcement,
    reader_paths,
    record_key,
    shard_of,
    shard_on,
    sign_announcement,
    task_seed,
)
from protocol.codec import MAX_DEPTH, MAX_INT, MAX_RECORD_BYTES
from protocol.frame import content_id, seal
from tests.protocol.samples import (
    ALICE,
    BOB,
    EPOCH,
    MANIFEST,
    SWARM,
    announcement,
    batch,
    completion,
    group,
)
from tests.protocol.strategies import announcements

epochs = st.integers(0, 2**40)
depths = st.integers(0, MAX_DEPTH - 1)


@given(announcements)
def test_an_announcement_comes_back_as_it_was_signed(drawn):
    made = replace(drawn, shard=shard_of(ALICE.author, EPOCH, drawn.depth))
    opened = open_announcement(sign_announcement(made, ALICE, SWARM), SWARM, MANIFEST)
    assert opened == (ALICE.author, made)


def test_the_largest_announcement_fits_into_a_record() -> None:
    offers = tuple(Offer(bytes([n]) * 32, 1 << 20, 1024, b"\xff" * 8, 1024) for n in range(4))
    made = Announcement(MAX_INT, 12, MAX_INT, MAX_INT, MAX_INT, 1e300, MAX_INT, offers)
    assert len(sign_announcement(made, ALICE, SWARM)) <= MAX_RECORD_BYTES


def test_an_offer_describes_its_frame() -> None:
    equal = group(1, completion(), completion())
    shared = batch(group(0), equal, group(2, env="riddles"))
    frame = seal(shared, ALICE, SWARM)
    assert offer_of(frame, shared, MANIFEST) == Offer(
        content_id=content_id(frame),
        size=len(frame),
        groups=3,
        env_digest=bytes([0, 0, 0, 0, 0, 0, 0, 0b11]),
        informative=2,
    )


def test_an_announcement_in_a_shard_of_choice_or_below_the_last_depth_is_refused() -> None:
    for depth in range(MAX_DEPTH + 1):
        mine = shard_of(ALICE.author, EPOCH, depth)
        for other in (mine + 1, mine - 1, mine + (1 << depth)):
            if other >= 0:
                elsewhere = sign_announcement(announcement(depth=depth, shard=other), ALICE, SWARM)
                with pytest.raises(errors.WrongShard):
                    open_announcement(elsewhere, SWARM, MANIFEST)
    shard = shard_of(ALICE.author, EPOCH, MAX_DEPTH + 1)
    with pytest.raises(errors.BadSchema, match="depth"):
        sign_announcement(announcement(depth=MAX_DEPTH + 1, shard=shard), ALICE, SWARM)


def test_a_clock_a_little_behind_is_forgiven_and_no_record_outlives_three_epochs_from_now() -> None:
    check_clock(announcement(), MANIFEST, EPOCH * 60.0 - 2.5)
    longest = announcement(expiry=(EPOCH + 4) * 60.0)
    open_announcement(sign_announcement(longest, ALICE, SWARM), SWARM, MANIFEST)
    check_clock(longest, MANIFEST, EPOCH * 60.0 + 57.5)
    with pytest.raises(errors.BadLifetime):
        check_clock(longest, MANIFEST, EPOCH * 60.0 + 30.0)


def test_an_epoch_is_the_quotient_rounded_and_begins_with_its_first_instant() -> None:
    assert [epoch_of(t, 60.0) for t in (0.0, 59.999, 60.0, 119.0, 120.0)] == [0, 0, 1, 1, 2]
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
def test_an_author_takes_one_of_the_whole_depths_around(identity, epoch, depth):
    assert math.floor(depth) <= depth_of(identity.author, epoch, depth) <= math.ceil(depth)


def test_as_many_authors_take_the_greater_depth_as_its_fraction_tells() -> None:
    taken = Counter(depth_of(ALICE.author, epoch, 3.25) for epoch in range(4000))
    assert set(taken) == {3, 4}
    assert 0.22 < taken[4] / 4000 < 0.28


@given(epochs)
def test_a_readers_two_paths_part_at_the_first_bit_and_hang_on_its_secret(epoch):
    one, other = reader_paths(ALICE.author, epoch, b"secret")
    assert shard_on(one, 0) == shard_on(other, 0) == 0
    assert {shard_on(one, 1), shard_on(other, 1)} == {0, 1}
    draws = {reader_paths(ALICE.author, epoch, bytes([n])) for n in range(20)}
    assert len({path for pair in draws for path in pair}) == 40


def test_seeds_differ_by_author_epoch_and_index_or_by_family_and_number() -> None:
    authors, twenty = (ALICE.author, BOB.author), range(20)
    tasks = {task_seed(a, epoch, index) for a in authors for epoch in twenty for index in twenty}
    held_out = {heldout_seed(env, number) for env in ("gcd", "lcm") for number in range(100)}
    assert (len(tasks), len(held_out)) == (800, 200)
    assert all(0 <= seed < 1 << 63 for seed in tasks | held_out)


def test_a_record_key_is_hashed_as_hivemind_hashes_it() -> None:
    """Taken from ``hivemind.dht.routing.DHTID.generate`` of hivemind 1.1.12."""
    assert record_key(SWARM, 5, 4, 3) == f"swarm-node/2/{SWARM.hex()}/5/4/3"
    key = record_key(bytes(32), 3, 0, 0)
    assert dht_key_of(key).hex() == "88a88c86b04f8ee25a8b56badd1c21aabff8e757"
