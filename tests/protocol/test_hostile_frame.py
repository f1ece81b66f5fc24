"""Mallory signs what she likes with her own key; every frame of hers is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import envelope, errors
from protocol.errors import ProtocolError
from protocol.frame import open_frame, seal
from protocol.rollout import encode_batch
from tests.protocol import samples
from tests.protocol.refusals import peak_of, refused
from tests.protocol.samples import (
    ALICE,
    FRAME,
    MALLORY,
    MANIFEST,
    OTHER_SWARM,
    SWARM,
    batch,
    completion,
    framed,
    framed_body,
    framed_plain,
    group,
    plain_wire,
)

PLAIN = encode_batch(batch())
EMPTY = {"writer": 0, "text": "", "tokens": None}


@pytest.mark.parametrize("compress", [False, True])
def test_any_one_flipped_byte_is_refused(compress: bool) -> None:
    frame = seal(batch(group(0), group(1), group(2)), ALICE, SWARM, compress=compress)
    for at in range(len(frame)):
        for mask in (0x01, 0x80, 0xFF):
            bent = frame[:at] + bytes([frame[at] ^ mask]) + frame[at + 1 :]
            with pytest.raises(ProtocolError):
                open_frame(bent, SWARM, MANIFEST)


def test_a_frame_cut_short_anywhere_is_refused() -> None:
    for end in range(len(FRAME)):
        with pytest.raises(ProtocolError):
            open_frame(FRAME[:end], SWARM, MANIFEST)


def test_a_frame_with_a_byte_more_is_refused() -> None:
    refused(FRAME + b"\0", errors.BadSignature)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        open_frame(data, SWARM, MANIFEST)


@given(st.binary(max_size=200))
def test_arbitrary_signed_bodies_are_refused_by_name(body: bytes) -> None:
    for frame in (framed_body(body), framed_plain(body)):
        with pytest.raises(ProtocolError):
            open_frame(frame, SWARM, MANIFEST)


@given(st.data())
def test_a_signed_body_with_bent_bytes_is_refused_or_keeps_to_the_schema(data) -> None:
    bent = bytearray(PLAIN)
    for _ in range(data.draw(st.integers(1, 3))):
        bent[data.draw(st.integers(0, len(bent) - 1))] = data.draw(st.integers(0, 255))
    try:
        opened = open_frame(framed_plain(bytes(bent)), SWARM, MANIFEST)
    except ProtocolError:
        return
    assert encode_batch(opened.batch) == bytes(bent)


def test_a_frame_of_another_swarm_is_refused() -> None:
    refused(seal(batch(), ALICE, OTHER_SWARM), errors.WrongSwarm)


def test_a_frame_moved_into_this_swarm_is_refused() -> None:
    stolen = seal(batch(), ALICE, OTHER_SWARM)
    refused(stolen[:8] + SWARM + stolen[40:], errors.BadSignature)


def test_a_signature_from_another_domain_is_refused() -> None:
    body = FRAME[envelope.HEAD_BYTES :]
    other = envelope.close(envelope.ANNOUNCEMENT, SWARM, ALICE, body)
    refused(other, errors.BadMagic)
    refused(envelope.FRAME.magic + other[8:], errors.BadSignature)


def test_a_frame_under_another_name_is_refused() -> None:
    refused(FRAME[:40] + MALLORY.author + FRAME[72:], errors.BadSignature)


def test_a_small_order_author_is_refused() -> None:
    refused(FRAME[:40] + bytes(32) + FRAME[72:], errors.BadKey)


def test_the_signature_is_checked_before_anything_is_unpacked(monkeypatch) -> None:
    def unreachable(*_: object) -> bytes:
        raise AssertionError("unpacked")

    monkeypatch.setattr("protocol.frame.decompress_body", unreachable)
    refused(FRAME[:-1] + b"\1", errors.BadSignature)


def test_a_frame_over_the_manifests_size_is_refused_before_it_is_hashed() -> None:
    refused(framed_plain(bytes(MANIFEST.max_frame_bytes)), errors.TooLarge)


def test_a_run_of_versions_cannot_be_longer_than_the_tokens() -> None:
    wire = plain_wire()
    tokens_of(wire)["versions"] = [7, 1 << 60]
    assert peak_of(framed(wire), errors.BadSchema) < 4 << 20


def completion_of(wire: dict) -> dict:
    return wire["groups"][0]["completions"][0]


def segment_of(wire: dict) -> dict:
    return completion_of(wire)["segments"][0]


def tokens_of(wire: dict) -> dict:
    return segment_of(wire)["tokens"]


Place = Callable[[dict], dict]
PLACES: list[tuple[Place, list[str]]] = [
    (lambda wire: wire, list(plain_wire())),
    (lambda wire: wire["groups"][0], ["env", "level", "epoch", "index", "completions"]),
    (completion_of, ["segments", "reward", "finish"]),
    (segment_of, ["writer", "text", "tokens"]),
    (tokens_of, ["ids", "logprobs", "versions"]),
]
FIELDS = [(place, name) for place, names in PLACES for name in names]


@pytest.mark.parametrize(("place", "name"), FIELDS, ids=[name for _, name in FIELDS])
def test_a_missing_or_additional_or_strange_field_is_refused(place: Place, name: str) -> None:
    for strange in ([], {}, [[]], True, -1, 1 << 63, "", b"", 1e300, [None], {"a": 1}):
        wire = plain_wire()
        if place(wire)[name] == strange or (name, strange) in ALLOWED:
            continue
        place(wire)[name] = strange
        with pytest.raises(ProtocolError):
            open_frame(framed(wire), SWARM, MANIFEST)
    wire = plain_wire()
    del place(wire)[name]
    refused(framed(wire), errors.BadSchema)
    wire = plain_wire()
    place(wire)["more"] = 1
    refused(framed(wire), errors.BadSchema)
    wire = plain_wire()
    place(wire)[name] = place(wire).pop(name)
    if list(place(wire)) != list(place(plain_wire())):
        refused(framed(wire), errors.BadSchema)


ALLOWED = [("text", ""), ("reward", 1e300)]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda w: w["groups"][0].update(env="lcm"), errors.BadSchema),
        (lambda w: w["groups"][0].update(level=2), errors.BadSchema),
        (lambda w: w["groups"][0].update(index=16), errors.BadSchema),
        (lambda w: w["groups"][0].update(epoch=1 << 63), errors.BadSchema),
        (lambda w: w["groups"].append(w["groups"][0]), errors.BadSchema),
        (lambda w: w["groups"][0]["completions"].pop(), errors.BadSchema),
        (lambda w: w["groups"][0]["completions"].extend([completion_of(w)] * 3), "too_many_items"),
        (lambda w: segment_of(w).update(text="x" * 257), "too_large"),
        (lambda w: segment_of(w).update(writer=1), errors.BadSchema),
        (lambda w: segment_of(w).update(writer=2), errors.BadSchema),
        (lambda w: completion_of(w).update(finish=2), errors.BadSchema),
        (lambda w: completion_of(w).update(segments=[EMPTY] * 65), "too_many_items"),
        (lambda w: completion_of(w).update(reward=1), errors.BadSchema),
        (lambda w: tokens_of(w).update(ids=bytes(11)), errors.BadSchema),
        (lambda w: tokens_of(w).update(ids=bytes(16)), errors.BadSchema),
        (lambda w: tokens_of(w).update(logprobs=bytes.fromhex("007e") * 3), errors.BadSchema),
        (lambda w: tokens_of(w).update(logprobs=bytes.fromhex("00fc") * 3), errors.BadSchema),
        (lambda w: tokens_of(w).update(logprobs=bytes.fromhex("003c") * 3), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 2]), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 4]), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 1, 7, 2]), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 3, 8, 0]), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 3, 8]), errors.BadSchema),
        (lambda w: tokens_of(w).update(versions=[7, 1] * 4), "too_many_items"),
    ],
)
def test_a_signed_frame_that_breaks_a_limit_is_refused(change, error) -> None:
    wire = plain_wire()
    change(wire)
    with pytest.raises(ProtocolError) as caught:
        open_frame(framed(wire), SWARM, MANIFEST)
    assert caught.value.code == getattr(error, "code", error)


def test_more_tokens_than_text_bytes_allowed_are_refused() -> None:
    wire = plain_wire()
    tokens_of(wire).update(ids=bytes(4 * 257), logprobs=bytes(2 * 257), versions=[0, 257])
    refused(framed(wire), errors.TooLarge, "257 tokens")


def test_text_is_counted_over_all_segments_of_a_completion() -> None:
    wire = plain_wire(batch(group(0, completion("x" * 129), completion())))
    completion_of(wire)["segments"] *= 2
    refused(framed(wire), errors.TooLarge, "258 bytes")


def test_the_specimen_itself_opens() -> None:
    """Else the refusals above could all have one reason."""
    assert open_frame(framed(plain_wire()), SWARM, MANIFEST).batch == samples.batch()
