"""Finding the addresses of a peer by asking others: FIND_NODE of libp2p's Kademlia.

Source: https://github.com/libp2p/specs/blob/master/kad-dht/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from swarm.transport.libp2p import peer_ids
from swarm.transport.libp2p.calls import one, several
from swarm.transport.protobuf import decode, encode, varints

ROUTING = "/ipfs/kad/1.0.0"
MOST_BYTES = 1 << 18
MOST_PEERS = 20
_FIND_NODE, _CONNECTED = 4, 1
_TYPE, _KEY, _CLOSER = 1, 2, 8


def question(peer: bytes) -> bytes:
    """Asks where a peer is."""
    return encode({_TYPE: _FIND_NODE, _KEY: peer})


def asked_for(message: bytes) -> bytes:
    """The peer that a message asks for; raises ``ValueError`` where it asks for something else."""
    fields = decode(message)
    if varints(fields.get(_TYPE, [0])) != [_FIND_NODE]:
        raise ValueError("only FIND_NODE is answered")
    return one(fields, _KEY)


def reply(known: Iterable[tuple[bytes, Sequence[bytes]]]) -> bytes:
    """Peers and where they are, in binary multiaddresses."""
    closer = [encode({1: peer, 2: list(at), 3: _CONNECTED}) for peer, at in known]
    return encode({_TYPE: _FIND_NODE, _CLOSER: closer})


def told(message: bytes, text: Callable[[bytes], str | None], most: int) -> Mapping[str, list[str]]:
    """Addresses by peer id of a reply.

    Args:
        text: a binary multiaddress in words, None where it is none.
        most: addresses of one peer that are looked at.

    Raises:
        ValueError: the message is none.
    """
    found: dict[str, list[str]] = {}
    for each in several(decode(message), _CLOSER)[:MOST_PEERS]:
        fields = decode(each)
        addresses = [text(address) for address in several(fields, 2)[:most]]
        found[peer_ids.text(one(fields, 1))] = [address for address in addresses if address]
    return found
