"""Messages of the pull, gossip, dial-back, manifest and profile streams.

Each is a u32 big-endian length and that many bytes. Invalid data raises ``ProtocolError``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from ipaddress import ip_address
from itertools import pairwise
from typing import Final

from protocol import codec
from protocol.codec import (
    MAX_FRAME_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_RECORD_BYTES,
    CodecLimits,
    decode,
    encode,
)
from protocol.envelope import HEAD_BYTES
from protocol.errors import BadSchema, TooLarge, TrailingBytes, Truncated

MANIFEST_STREAM: Final = "/swarm-node/1/manifest"
PULL_STREAM: Final = "/swarm-node/1/pull"
GOSSIP_STREAM: Final = "/swarm-node/2/gossip"
PROFILE_STREAM: Final = "/swarm-node/1/profile"

CONTENT_ID_BYTES = 32
MAX_GOSSIP = 256  # records in one gossip response
DIGEST_BYTES = 3
MAX_DIGESTS = 256  # record digests in one gossip request
MAX_GOSSIP_REQUEST_BYTES = 64 + MAX_DIGESTS * DIGEST_BYTES
MAX_GOSSIP_RESPONSE_BYTES = MAX_GOSSIP * (MAX_RECORD_BYTES + 3) + 3
MAX_PULL_RESPONSE_BYTES = MAX_FRAME_BYTES + 1
MAX_MANIFEST_RESPONSE_BYTES = MAX_MANIFEST_BYTES
MAX_PROFILE_RESPONSE_BYTES = MAX_RECORD_BYTES

_REQUEST = ("after", "limit", "known")
_REQUEST_LIMITS = CodecLimits(
    MAX_GOSSIP_REQUEST_BYTES, depth=1, items=7, str_len=5, bin_len=MAX_DIGESTS * DIGEST_BYTES
)
_RESPONSE_LIMITS = CodecLimits(
    MAX_GOSSIP_RESPONSE_BYTES, depth=1, items=MAX_GOSSIP + 1, str_len=0, bin_len=MAX_RECORD_BYTES
)


class PullStatus(IntEnum):
    """First byte of a pull response."""

    OK = 0
    NOT_FOUND = 1
    BUSY = 2


@dataclass(frozen=True, slots=True)
class GossipRequest:
    """A request for up to ``limit`` announcements of time slots later than ``after``.

    ``known`` holds the ascending :func:`record_digest` of unwanted records.
    """

    after: int
    limit: int
    known: tuple[bytes, ...] = ()


def decode_pull_request(data: bytes) -> bytes:
    """Return the content id, which is the whole request."""
    if len(data) < CONTENT_ID_BYTES:
        raise Truncated(f"pull request of {len(data)} bytes, expected {CONTENT_ID_BYTES}")
    if len(data) > CONTENT_ID_BYTES:
        raise TrailingBytes(f"pull request of {len(data)} bytes, expected {CONTENT_ID_BYTES}")
    return data


def encode_pull_response(status: PullStatus, frame: bytes = b"") -> bytes:
    """Encode the status byte, followed by the frame if the status is OK."""
    return bytes((status,)) + frame


def decode_pull_response(data: bytes) -> tuple[PullStatus, bytes]:
    """Return status and frame; the frame is empty unless the status is OK."""
    if not data:
        raise Truncated("empty pull response")
    if len(data) > MAX_PULL_RESPONSE_BYTES:
        raise TooLarge(f"pull response of {len(data)} bytes, limit {MAX_PULL_RESPONSE_BYTES}")
    if data[0] > PullStatus.BUSY:
        raise BadSchema(f"unknown pull status {data[0]}")
    status, frame = PullStatus(data[0]), data[1:]
    if status is PullStatus.OK and len(frame) < HEAD_BYTES:
        raise Truncated(f"pulled frame of {len(frame)} bytes, its head alone takes {HEAD_BYTES}")
    if status is not PullStatus.OK and frame:
        raise TrailingBytes(f"{len(frame)} bytes after status {status.name}")
    return status, frame


def record_digest(record: bytes) -> bytes:
    """Return the digest that stands for a signed announcement in a gossip request."""
    return sha256(record).digest()[:DIGEST_BYTES]


def encode_gossip_request(request: GossipRequest) -> bytes:
    """Encode the request as canonical msgpack."""
    digests = b"".join(request.known)
    return encode({"after": request.after, "limit": request.limit, "known": digests})


def decode_gossip_request(data: bytes) -> GossipRequest:
    """Decode what :func:`encode_gossip_request` returns."""
    after, limit, known = codec.fields(decode(data, _REQUEST_LIMITS), _REQUEST, "gossip request")
    maximum = codec.integer(limit, "limit", 1, MAX_GOSSIP)
    return GossipRequest(codec.integer(after, "after"), maximum, _digests(known))


def encode_gossip_response(records: list[bytes]) -> bytes:
    """Encode signed announcements as a canonical msgpack array of byte strings."""
    return encode(records)


def decode_gossip_response(data: bytes, limit: int = MAX_GOSSIP) -> list[bytes]:
    """Return at most ``limit`` unopened records of at most 1 KiB each."""
    records = codec.items(decode(data, _RESPONSE_LIMITS), "gossip response", limit)
    result = [record for record in records if isinstance(record, bytes)]
    if len(result) < len(records):
        raise BadSchema("gossip response: a record is not a byte string")
    return result


def _digests(data: object) -> tuple[bytes, ...]:
    if not isinstance(data, bytes) or len(data) % DIGEST_BYTES:
        raise BadSchema(f"known: expected a byte string, {DIGEST_BYTES} bytes a record")
    starts = range(0, len(data), DIGEST_BYTES)
    digests = tuple(data[start : start + DIGEST_BYTES] for start in starts)
    if any(a >= b for a, b in pairwise(digests)):
        raise BadSchema("known: digests are not in ascending order, or one is there twice")
    return digests


DIAL_BACK_STREAM: Final = "/swarm-node/1/dial-back"

MAX_PORTS = 4
HIGHEST_PORT = 65535
MAX_ADDRESS_BYTES = 64
MAX_DIAL_BACK_REQUEST_BYTES = 32
MAX_DIAL_BACK_RESPONSE_BYTES = 128

_DIAL_BACK_REQUEST = ("ports",)
_DIAL_BACK_REQUEST_LIMITS = CodecLimits(
    MAX_DIAL_BACK_REQUEST_BYTES, depth=2, items=MAX_PORTS + 3, str_len=5, bin_len=0
)
_RESPONSE = ("host", "open", "relays")
_DIAL_BACK_RESPONSE_LIMITS = CodecLimits(
    MAX_DIAL_BACK_RESPONSE_BYTES, depth=2, items=MAX_PORTS + 7, str_len=MAX_ADDRESS_BYTES, bin_len=0
)


@dataclass(frozen=True, slots=True)
class DialledBack:
    """The result of dialing the peer that asked."""

    host: str  # the IP address that the request came from, the only one dialed
    open: tuple[int, ...]  # the requested ports at which the peer answered under its own PeerID
    relays: bool  # whether the responding peer is reachable itself and relays for others


def encode_dial_back_request(ports: tuple[int, ...]) -> bytes:
    """Encode the TCP ports to dial, 1 to :data:`MAX_PORTS` of them."""
    return encode({"ports": list(ports)})


def decode_dial_back_request(data: bytes) -> tuple[int, ...]:
    """Decode what :func:`encode_dial_back_request` returns."""
    (ports,) = codec.fields(
        decode(data, _DIAL_BACK_REQUEST_LIMITS), _DIAL_BACK_REQUEST, "dial-back request"
    )
    return _ports(codec.items(ports, "ports", MAX_PORTS, least=1), "ports")


def encode_dial_back_response(answer: DialledBack) -> bytes:
    """Encode the response as canonical msgpack."""
    return encode({"host": answer.host, "open": list(answer.open), "relays": answer.relays})


def decode_dial_back_response(data: bytes, asked: tuple[int, ...]) -> DialledBack:
    """Decode a dial-back response; its ports must be among ``asked``."""
    value = decode(data, _DIAL_BACK_RESPONSE_LIMITS)
    host, open_ports, relays = codec.fields(value, _RESPONSE, "dial-back response")
    ports = _ports(codec.items(open_ports, "open", MAX_PORTS), "open")
    if not set(ports) <= set(asked):
        raise BadSchema(f"open: {ports} were not all asked for")
    if type(relays) is not bool:
        raise BadSchema(f"relays: expected a boolean, got {relays!r}")
    return DialledBack(_host(host), ports, relays)


def _host(value: object) -> str:
    host = codec.label(value, "host", MAX_ADDRESS_BYTES)
    try:
        return str(ip_address(host))
    except ValueError as error:
        raise BadSchema(f"host: expected an IP address, got {host!r}") from error


def _ports(values: list[object], context: str) -> tuple[int, ...]:
    return tuple(codec.integer(value, context, 1, HIGHEST_PORT) for value in values)
