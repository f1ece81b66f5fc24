"""The three streams: what is asked and answered there, and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_FRAME_BYTES, MAX_INT, encode
from protocol.errors import (
    BadSchema,
    ProtocolError,
    TooLarge,
    TooManyItems,
    TrailingBytes,
    Truncated,
)
from protocol.messages import (
    MAX_GOSSIP,
    MAX_GOSSIP_REQUEST_BYTES,
    MAX_GOSSIP_RESPONSE_BYTES,
    GossipRequest,
    PullStatus,
    decode_gossip_request,
    decode_gossip_response,
    decode_pull_request,
    decode_pull_response,
    encode_gossip_request,
    encode_gossip_response,
    encode_pull_response,
)
from tests.protocol.samples import FRAME


def test_a_pull_asks_by_content_id() -> None:
    assert decode_pull_request(bytes(range(32))) == bytes(range(32))
    with pytest.raises(Truncated):
        decode_pull_request(bytes(31))
    with pytest.raises(TrailingBytes):
        decode_pull_request(bytes(33))


def test_a_pull_is_answered_with_the_frame_or_a_reason() -> None:
    found = encode_pull_response(PullStatus.OK, FRAME)
    assert found == b"\0" + FRAME
    assert decode_pull_response(found) == (PullStatus.OK, FRAME)
    for status in (PullStatus.NOT_FOUND, PullStatus.BUSY):
        assert decode_pull_response(encode_pull_response(status)) == (status, b"")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", Truncated),
        (b"\x03", BadSchema),
        (b"\0", Truncated),
        (b"\1more", TrailingBytes),
        (bytes(MAX_FRAME_BYTES + 2), TooLarge),
    ],
)
def test_a_malformed_pull_response_is_refused(data: bytes, error: type) -> None:
    with pytest.raises(error):
        decode_pull_response(data)


@given(st.integers(0, MAX_INT), st.integers(1, MAX_GOSSIP))
def test_a_gossip_request_comes_back(after: int, limit: int) -> None:
    spelled = encode_gossip_request(GossipRequest(after, limit))
    assert len(spelled) <= MAX_GOSSIP_REQUEST_BYTES
    assert decode_gossip_request(spelled) == GossipRequest(after, limit)


@pytest.mark.parametrize(
    "wire",
    [
        {"after": 0, "limit": 0},
        {"after": 0, "limit": MAX_GOSSIP + 1},
        {"after": -1, "limit": 1},
        {"after": 0.0, "limit": 1},
        {"limit": 1, "after": 0},
        {"after": 0},
        None,
    ],
)
def test_a_malformed_gossip_request_is_refused(wire: object) -> None:
    with pytest.raises(BadSchema):
        decode_gossip_request(encode(wire))


@given(st.lists(st.binary(max_size=1024), max_size=20))
def test_gossip_brings_records_unopened(records: list[bytes]) -> None:
    assert decode_gossip_response(encode_gossip_response(records)) == records


def test_the_largest_gossip_response_fits() -> None:
    spelled = encode_gossip_response([bytes(1024)] * MAX_GOSSIP)
    assert len(spelled) == MAX_GOSSIP_RESPONSE_BYTES
    assert len(decode_gossip_response(spelled)) == MAX_GOSSIP


@pytest.mark.parametrize(
    ("wire", "error"),
    [
        ([bytes(1025)], TooLarge),
        ([b""] * (MAX_GOSSIP + 1), TooManyItems),
        ([1], BadSchema),
        ({}, BadSchema),
    ],
)
def test_a_malformed_gossip_response_is_refused(wire: object, error: type) -> None:
    with pytest.raises(error):
        decode_gossip_response(encode(wire))


def test_a_peer_that_answers_more_than_was_asked_for_is_refused() -> None:
    with pytest.raises(TooManyItems):
        decode_gossip_response(encode([b"a", b"b"]), limit=1)


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_refused_by_name_or_are_a_message(data: bytes) -> None:
    for decoder in (
        decode_pull_request,
        decode_pull_response,
        decode_gossip_request,
        decode_gossip_response,
    ):
        try:
            decoder(data)
        except ProtocolError as error:
            assert error.code != ProtocolError.code
