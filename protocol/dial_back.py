"""Request and response by which a peer finds out whether others can dial it."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from protocol import schema
from protocol.codec import Limits, decode, encode
from protocol.errors import BadSchema

DIAL_BACK_STREAM: Final = "/swarm-node/1/dial-back"

MAX_PORTS = 4
HIGHEST_PORT = 65535
MAX_ADDRESS_BYTES = 64
MAX_DIAL_BACK_REQUEST_BYTES = 32
MAX_DIAL_BACK_RESPONSE_BYTES = 128

_REQUEST = ("ports",)
_REQUEST_LIMITS = Limits(
    MAX_DIAL_BACK_REQUEST_BYTES, depth=2, items=MAX_PORTS + 3, str_len=5, bin_len=0
)
_RESPONSE = ("host", "open", "relays")
_RESPONSE_LIMITS = Limits(
    MAX_DIAL_BACK_RESPONSE_BYTES,
    depth=2,
    items=MAX_PORTS + 7,
    str_len=MAX_ADDRESS_BYTES,
    bin_len=0,
)


@dataclass(frozen=True, slots=True)
class DialledBack:
    """What came of dialling the asker.

    Attributes:
        host: the IP address that the asker's connection came from, the only one dialled.
        open: those of the ports at which the asker answered under its own PeerID.
        relays: whether the answering peer can be dialled itself, and relays for others.
    """

    host: str
    open: tuple[int, ...]
    relays: bool


def encode_dial_back_request(ports: tuple[int, ...]) -> bytes:
    """TCP ports, 1 to :data:`MAX_PORTS`, to be dialled at."""
    return encode({"ports": list(ports)})


def decode_dial_back_request(data: bytes) -> tuple[int, ...]:
    """The inverse of :func:`encode_dial_back_request`.

    Raises:
        ProtocolError
    """
    (ports,) = schema.fields(decode(data, _REQUEST_LIMITS), _REQUEST, "dial-back request")
    return _ports(schema.items(ports, "ports", MAX_PORTS, least=1), "ports")


def encode_dial_back_response(answer: DialledBack) -> bytes:
    """The answer as canonical msgpack."""
    return encode({"host": answer.host, "open": list(answer.open), "relays": answer.relays})


def decode_dial_back_response(data: bytes, asked: tuple[int, ...]) -> DialledBack:
    """The inverse of :func:`encode_dial_back_response`, for the ports that were asked.

    Raises:
        ProtocolError
    """
    value = decode(data, _RESPONSE_LIMITS)
    host, opened, relays = schema.fields(value, _RESPONSE, "dial-back response")
    ports = _ports(schema.items(opened, "open", MAX_PORTS), "open")
    if not set(ports) <= set(asked):
        raise BadSchema(f"open: {ports} were not all asked for")
    if type(relays) is not bool:
        raise BadSchema(f"relays: expected a boolean, got {relays!r}")
    return DialledBack(_host(host), ports, relays)


def _host(value: object) -> str:
    host = schema.label(value, "host", MAX_ADDRESS_BYTES)
    try:
        return str(ip_address(host))
    except ValueError as error:
        raise BadSchema(f"host: expected an IP address, got {host!r}") from error


def _ports(values: list[object], where: str) -> tuple[int, ...]:
    return tuple(schema.integer(value, where, 1, HIGHEST_PORT) for value in values)
