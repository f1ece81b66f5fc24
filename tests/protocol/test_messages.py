"""Pull and gossip messages round-trip; invalid ones are refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.codec import MAX_FRAME_BYTES, MAX_INT
from protocol.errors import ProtocolError, TooLarge, TooManyItems, TrailingBytes, Truncated
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


def test_pull_request_has_32_bytes() -> None:
    assert decode_pull_request(bytes(range(32))) == bytes(range(32))
    with pytest.raises(Truncated):
        decode_pull_request(bytes(31))
    with pytest.raises(TrailingBytes):
        decode_pull_request(bytes(33))


def test_pull_response_holds_a_frame_or_status() -> None:
    response = encode_pull_response(PullStatus.OK, FRAME)
    assert response == b"\0" + FRAME
    assert decode_pull_response(response) == (PullStatus.OK, FRAME)
    for status in (PullStatus.NOT_FOUND, PullStatus.BUSY):
        assert decode_pull_response(encode_pull_response(status)) == (status, b"")
    with pytest.raises(TooLarge):
        decode_pull_response(bytes(MAX_FRAME_BYTES + 2))


@given(st.integers(0, MAX_INT), st.integers(1, MAX_GOSSIP))
def test_gossip_request_round_trips(after: int, limit: int) -> None:
    encoded = encode_gossip_request(GossipRequest(after, limit))
    assert len(encoded) <= MAX_GOSSIP_REQUEST_BYTES
    assert decode_gossip_request(encoded) == GossipRequest(after, limit)


@given(st.lists(st.binary(max_size=1024), max_size=20))
def test_gossip_response_round_trips_and_obeys_its_limit(records):
    encoded = encode_gossip_response(records)
    assert decode_gossip_response(encoded, limit=max(1, len(records))) == records
    if len(records) > 1:
        with pytest.raises(TooManyItems):
            decode_gossip_response(encoded, limit=len(records) - 1)
    largest = encode_gossip_response([bytes(1024)] * MAX_GOSSIP)
    assert len(largest) == MAX_GOSSIP_RESPONSE_BYTES
    assert len(decode_gossip_response(largest)) == MAX_GOSSIP


@pytest.mark.parametrize(
    "read",
    [decode_pull_request, decode_pull_response, decode_gossip_request, decode_gossip_response],
)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_decode_or_raise_a_named_error(read, data):
    try:
        read(data)
    except ProtocolError as error:
        assert error.code != ProtocolError.code
