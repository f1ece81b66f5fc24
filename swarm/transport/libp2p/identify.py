"""Who a peer is and where it listens.

Source: https://github.com/libp2p/specs/blob/master/identify/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarm.transport.libp2p.calls import one, several
from swarm.transport.protobuf import decode, encode

IDENTIFY = "/ipfs/id/1.0.0"
PUSH = "/ipfs/id/push/1.0.0"
"""Tells it anew."""

MOST_BYTES = 1 << 16
VERSION = b"swarm-node/1"


def identification(
    public_key: bytes, listening: Iterable[bytes], spoken: Iterable[str], observed: bytes
) -> bytes:
    """What this peer says of itself; addresses are binary multiaddresses."""
    return encode(
        {
            5: VERSION,
            6: VERSION,
            1: public_key,
            2: list(listening),
            4: observed,
            3: [protocol.encode() for protocol in spoken],
        }
    )


def listening_at(message: bytes, text: Callable[[bytes], str | None], most: int) -> tuple[str, ...]:
    """Where a peer says that it listens.

    Args:
        text: a binary multiaddress in words, None where it is none.
        most: addresses that are looked at.

    Raises:
        ValueError: the message is none.
    """
    found = (text(address) for address in several(decode(message), 2)[:most])
    one(decode(message), 1)
    return tuple(address for address in found if address)
