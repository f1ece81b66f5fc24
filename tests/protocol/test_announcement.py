"""A record says who offers what, in its author's place, for a bounded time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import envelope, errors
from protocol.announcement import (
    Announcement,
    Offer,
    check_clock,
    check_record,
    dht_key_of,
    offer_of,
    open_announcement,
    record_key,
    shard_of,
    sign_announcement,
)
from protocol.codec import MAX_DEPTH, MAX_INT, MAX_RECORD_BYTES, CodecLimits, decode
from protocol.errors import ProtocolError
from protocol.frame import content_id, seal
from protocol.manifest import AllowList, ProofOfWork, find_nonce
from tests.protocol.samples import (
    ALICE,
    BOB,
    EPOCH,
    FRAME,
    MALLORY,
    MANIFEST,
    NOW,
    OTHER_SWARM,
    SWARM,
    announcement,
    batch,
    completion,
    group,
    record,
)
from tests.protocol.strategies import announcements

SIGNED = sign_announcement(announcement(), ALICE, SWARM)
EXPIRY = announcement().expiry


def wire_of(made: Announcement) -> dict:
    signed = sign_announcement(made, ALICE, SWARM)
    return decode(signed[envelope.HEAD_BYTES :], CodecLimits(1024, 9, 200, 99, 99))


def key_of(made: Announcement) -> bytes:
    return dht_key_of(record_key(SWARM, made.epoch, made.depth, made.shard))


def refused(value: bytes, error: type[ProtocolError]) -> None:
    with pytest.raises(ProtocolError) as caught:
        open_announcement(value, SWARM, MANIFEST)
    assert type(caught.value) is error, caught.value


@given(announcements)
def test_an_announcement_comes_back_as_it_was_signed(drawn: Announcement) -> None:
    made = replace(drawn, shard=shard_of(ALICE.author, EPOCH, drawn.depth))
    assert open_announcement(sign_announcement(made, ALICE, SWARM), SWARM, MANIFEST) == (
        ALICE.author,
        made,
    )


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


def test_every_flipped_byte_is_refused() -> None:
    for at in range(len(SIGNED)):
        with pytest.raises(ProtocolError):
            open_announcement(
                SIGNED[:at] + bytes([SIGNED[at] ^ 1]) + SIGNED[at + 1 :], SWARM, MANIFEST
            )


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_by_name(data: bytes) -> None:
    for value in (data, envelope.close(envelope.ANNOUNCEMENT, SWARM, MALLORY, data)):
        with pytest.raises(ProtocolError):
            open_announcement(value, SWARM, MANIFEST)


def test_a_record_over_its_size_is_refused() -> None:
    refused(SIGNED + bytes(MAX_RECORD_BYTES + 1 - len(SIGNED)), errors.TooLarge)


def test_a_frame_is_not_an_announcement() -> None:
    refused(FRAME, errors.BadMagic)


def test_a_frames_signature_does_not_announce() -> None:
    body = SIGNED[envelope.HEAD_BYTES :]
    framed = envelope.close(envelope.FRAME, SWARM, ALICE, body)
    refused(envelope.ANNOUNCEMENT.magic + framed[8:], errors.BadSignature)


def test_an_announcement_of_another_swarm_is_refused() -> None:
    other = sign_announcement(announcement(), ALICE, OTHER_SWARM)
    refused(other, errors.WrongSwarm)
    refused(other[:8] + SWARM + other[40:], errors.BadSignature)


def test_an_announcement_in_a_shard_of_choice_is_refused() -> None:
    for depth in range(MAX_DEPTH + 1):
        mine = shard_of(ALICE.author, EPOCH, depth)
        for other in (mine + 1, mine - 1, mine + (1 << depth)):
            if other >= 0:
                elsewhere = announcement(depth=depth, shard=other)
                refused(sign_announcement(elsewhere, ALICE, SWARM), errors.WrongShard)


def test_an_announcement_below_the_last_depth_is_not_made() -> None:
    deeper = MAX_DEPTH + 1
    with pytest.raises(errors.BadSchema, match="depth"):
        sign_announcement(
            announcement(depth=deeper, shard=shard_of(ALICE.author, EPOCH, deeper)), ALICE, SWARM
        )


@pytest.mark.parametrize("expiry", [EPOCH * 60.0, EPOCH * 60.0 + 240.1, 1e300])
def test_a_lifetime_outside_of_three_epochs_is_refused(expiry: float) -> None:
    refused(sign_announcement(announcement(expiry=expiry), ALICE, SWARM), errors.BadLifetime)


def test_a_frame_larger_than_the_manifest_allows_is_not_offered() -> None:
    offer = replace(announcement().offers[0], size=MANIFEST.max_frame_bytes + 1)
    refused(sign_announcement(announcement(offers=(offer,)), ALICE, SWARM), errors.TooLarge)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda w: w["offers"].extend(w["offers"] * 4), errors.TooManyItems),
        (lambda w: w["offers"].extend(w["offers"]), errors.BadSchema),
        (lambda w: w["offers"][0].update(size=0), errors.BadSchema),
        (lambda w: w["offers"][0].update(groups=0), errors.BadSchema),
        (lambda w: w["offers"][0].update(informative=2), errors.BadSchema),
        (lambda w: w["offers"][0].update(content_id=bytes(31)), errors.BadSchema),
        (lambda w: w["offers"][0].update(env_digest=bytes(9)), errors.BadSchema),
        (lambda w: w["offers"][0].pop("size"), errors.BadSchema),
        (lambda w: w.pop("nonce"), errors.BadSchema),
        (lambda w: w.update(more=1), errors.BadSchema),
        (lambda w: w.update(expiry=1750000000), errors.BadSchema),
        (lambda w: w.update(epoch=-1), errors.BadSchema),
        (lambda w: w.update(epoch=1 << 63), errors.BadSchema),
        (lambda w: w.update(offers=None), errors.BadSchema),
        (lambda w: w.update(offers=[[[[]]]]), errors.TooDeep),
    ],
)
def test_a_signed_record_that_breaks_the_schema_is_refused(change, error) -> None:
    wire = wire_of(announcement())
    change(wire)
    refused(record(wire), error)


def test_an_announcement_without_offers_says_that_its_author_is_there() -> None:
    signed = sign_announcement(announcement(offers=()), ALICE, SWARM)
    assert open_announcement(signed, SWARM, MANIFEST)[1].offers == ()


def test_work_is_asked_for_where_the_manifest_does() -> None:
    working = replace(MANIFEST, admission=ProofOfWork(12))
    nonce = find_nonce(working.admission, SWARM, ALICE.author)
    paid = sign_announcement(announcement(nonce=nonce), ALICE, SWARM)
    free = sign_announcement(announcement(nonce=nonce + 1), ALICE, SWARM)
    open_announcement(paid, SWARM, working)
    with pytest.raises(errors.NotAdmitted):
        open_announcement(free, SWARM, working)


def test_an_author_off_the_allow_list_does_not_announce() -> None:
    closed = replace(MANIFEST, admission=AllowList((BOB.author,)))
    with pytest.raises(errors.NotAdmitted):
        open_announcement(SIGNED, SWARM, closed)


def test_a_record_in_its_place_and_time_passes() -> None:
    made = announcement()
    assert check_record(key_of(made), ALICE.author, SIGNED, EXPIRY, NOW, SWARM, MANIFEST) == (
        ALICE.author,
        made,
    )


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"subkey": MALLORY.author}, errors.WrongShard),
        ({"key": bytes(20)}, errors.WrongShard),
        ({"key": key_of(announcement(epoch=EPOCH + 1))}, errors.WrongShard),
        ({"expiry": EXPIRY + 1.0}, errors.BadLifetime),
        ({"expiry": EXPIRY - 1.0}, errors.BadLifetime),
        ({"now": EXPIRY}, errors.Expired),
        ({"now": EPOCH * 60.0 - 3.5}, errors.BadLifetime),
        ({"value": SIGNED[:-1]}, errors.BadSignature),
    ],
)
def test_a_record_out_of_place_or_time_is_refused(change: dict, error: type) -> None:
    record = {
        "key": key_of(announcement()),
        "subkey": ALICE.author,
        "value": SIGNED,
        "expiry": EXPIRY,
        "now": NOW,
    }
    with pytest.raises(ProtocolError) as caught:
        check_record(**{**record, **change}, swarm_id=SWARM, manifest=MANIFEST)
    assert type(caught.value) is error, caught.value


def test_a_clock_a_little_behind_is_forgiven() -> None:
    check_clock(announcement(), MANIFEST, EPOCH * 60.0 - 2.5)


def test_a_record_may_not_outlive_three_epochs_from_now() -> None:
    longest = announcement(expiry=(EPOCH + 4) * 60.0)
    open_announcement(sign_announcement(longest, ALICE, SWARM), SWARM, MANIFEST)
    check_clock(longest, MANIFEST, EPOCH * 60.0 + 57.5)
    with pytest.raises(errors.BadLifetime):
        check_clock(longest, MANIFEST, EPOCH * 60.0 + 30.0)
