"""Messages of libp2p's circuit relay: asking a peer to relay, and being connected by one.

Source: https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md.
"""

from __future__ import annotations

from swarm.transport.libp2p import peer_ids
from swarm.transport.libp2p.calls import one
from swarm.transport.protobuf import Fields, decode, encode

HOP = "/libp2p/circuit/relay/0.2.0/hop"
"""Spoken by whoever relays."""

STOP = "/libp2p/circuit/relay/0.2.0/stop"
"""Spoken by whoever is relayed for."""

MESSAGE_BYTES = 4096
LEAST_SECONDS = 60.0
MOST_SECONDS = 3600.0
"""For which a relay's word that it relays is taken."""

OK, UNEXPECTED_MESSAGE = 100, 401
REFUSALS = {
    200: "the relay takes nobody",
    201: "the relay is full; join through another peer",
    202: "the relay does not allow it",
    203: "the relay does not reach it",
    204: "the relay does not relay for it any more; join through another peer",
}
_RESERVE, _HOP_CONNECT, _HOP_STATUS = 0, 1, 2
_STOP_CONNECT, _STOP_STATUS = 0, 1


def reserve() -> bytes:
    """Asks a relay to relay for the asker."""
    return encode({1: _RESERVE})


def connect(peer: str) -> bytes:
    """Asks a relay for a connection with a peer; raises ``ValueError``."""
    return encode({1: _HOP_CONNECT, 2: encode({1: peer_ids.raw(peer)})})


def relayed(message: bytes) -> None:
    """Read a relay's answer to :func:`connect`.

    Raises:
        ConnectionError: it does not connect.
        ValueError: it is no answer.
    """
    _check(decode(message))


def reserved(message: bytes, now: float) -> float:
    """Seconds for which a relay that answers :func:`reserve` relays.

    Args:
        now: unix seconds.

    Raises:
        ConnectionError: it does not.
        ValueError: it is no answer.
    """
    fields = decode(message)
    _check(fields)
    expiry = _number(decode(one(fields, 3)), 1)
    return min(MOST_SECONDS, max(LEAST_SECONDS, expiry - now))


def taken(message: bytes) -> str:
    """The peer whose connection a relay brings; raises ``ValueError`` where it brings none."""
    fields = decode(message)
    if _number(fields, 1) != _STOP_CONNECT:
        raise ValueError("a relay's message that is not CONNECT")
    return peer_ids.text(one(decode(one(fields, 2)), 1))


def answer(status: int) -> bytes:
    """Tells a relay whether the connection that it brings is taken."""
    return encode({1: _STOP_STATUS, 4: status})


def _check(fields: Fields) -> None:
    if _number(fields, 1) != _HOP_STATUS:
        raise ValueError("a relay's answer that is no status")
    if (status := _number(fields, 5)) != OK:
        raise ConnectionError(REFUSALS.get(status, f"the relay refuses with status {status}"))


def _number(fields: Fields, field: int) -> int:
    value = fields.get(field, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value
