"""A record lists an author's offers, expires, and has a place no author chooses."""

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
def test_signed_announcement_round_trips(drawn):
    made = replace(drawn, shard=shard_of(ALICE.author, EPOCH, drawn.depth))
    opened = open_announcement(sign_announcement(made, ALICE, SWARM), SWARM, MANIFEST)
    assert opened == (ALICE.author, made)


def test_largest_announcement_fits_in_a_record() -> None:
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


def test_wrong_shard_or_excessive_depth_is_refused() -> None:
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


def test_clock_check_tolerates_small_skew_and_limits_the_lifetime() -> None:
    check_clock(announcement(), MANIFEST, EPOCH * 60.0 - 2.5)
    longest = announcement(expiry=(EPOCH + 4) * 60.0)
    open_announcement(sign_announcement(longest, ALICE, SWARM), SWARM, MANIFEST)
    check_clock(longest, MANIFEST, EPOCH * 60.0 + 57.5)
    with pytest.raises(errors.BadLifetime):
        check_clock(longest, MANIFEST, EPOCH * 60.0 + 30.0)


def test_epoch_of_floors_the_float_quotient() -> None:
    assert [epoch_of(t, 60.0) for t in (0.0, 59.999, 60.0, 119.0, 120.0)] == [0, 0, 1, 1, 2]
    assert epoch_of(0.3, 0.1) == 2
    assert epoch_of(1.0, 0.1) == 10  # 1.0 // 0.1 would be 9


@given(epochs, depths)
def test_shard_lies_in_its_depth_and_its_parent_shard(epoch: int, depth: int) -> None:
    shard = shard_of(ALICE.author, epoch, depth)
    assert 0 <= shard < 1 << depth
    assert shard_of(ALICE.author, epoch, depth + 1) >> 1 == shard


def test_author_moves_over_all_shards_across_time_slots() -> None:
    counts = Counter(shard_of(ALICE.author, epoch, 3) for epoch in range(800))
    assert set(counts) == set(range(8))
    assert max(counts.values()) < 150


@given(st.floats(0.0, 1e12))
def test_depth_targets_sixteen_authors_per_shard(authors: float) -> None:
    depth = depth_for(authors)
    assert 0.0 <= depth <= MAX_DEPTH
    if 0.0 < depth < MAX_DEPTH:
        assert authors / 2.0**depth == pytest.approx(AUTHORS_A_SHARD)


@given(st.sampled_from([ALICE, BOB]), epochs, st.floats(0.0, MAX_DEPTH))
def test_author_depth_is_the_floor_or_ceiling(identity, epoch, depth):
    assert math.floor(depth) <= depth_of(identity.author, epoch, depth) <= math.ceil(depth)


def test_depth_fraction_sets_how_often_authors_go_deeper() -> None:
    chosen = Counter(depth_of(ALICE.author, epoch, 3.25) for epoch in range(4000))
    assert set(chosen) == {3, 4}
    assert 0.22 < chosen[4] / 4000 < 0.28


@given(epochs)
def test_reader_paths_differ_in_first_bit_and_depend_on_secret(epoch):
    one, other = reader_paths(ALICE.author, epoch, b"secret")
    assert shard_on(one, 0) == shard_on(other, 0) == 0
    assert {shard_on(one, 1), shard_on(other, 1)} == {0, 1}
    draws = {reader_paths(ALICE.author, epoch, bytes([n])) for n in range(20)}
    assert len({path for pair in draws for path in pair}) == 40


def test_seeds_are_unique_per_sample_and_per_heldout_number() -> None:
    authors, twenty = (ALICE.author, BOB.author), range(20)
    tasks = {task_seed(a, epoch, index) for a in authors for epoch in twenty for index in twenty}
    held_out = {heldout_seed(env, number) for env in ("gcd", "lcm") for number in range(100)}
    assert (len(tasks), len(held_out)) == (800, 200)
    assert all(0 <= seed < 1 << 63 for seed in tasks | held_out)


def test_record_key_hash_matches_hivemind() -> None:
    """The expected hash is from hivemind 1.1.12: ``DHTID.generate`` in its routing."""
    assert record_key(SWARM, 5, 4, 3) == f"swarm-node/2/{SWARM.hex()}/5/4/3"
    key = record_key(bytes(32), 3, 0, 0)
    assert dht_key_of(key).hex() == "88a88c86b04f8ee25a8b56badd1c21aabff8e757"
