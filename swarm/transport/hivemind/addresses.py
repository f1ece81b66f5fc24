"""Multiaddresses as hivemind's client of a daemon hands them on.

Works on the class that :mod:`swarm.transport.hivemind.node` hands over and imports nothing of
hivemind.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protocol.identity import decode_base58
from swarm.transport.reach import is_relayed

P2P = b"\xa5\x03"
"""The code of ``/p2p/`` as a varint."""


def packed(address: str, multiaddr: Any) -> Any:
    """A multiaddress, perhaps through a relay.

    Inside of an address hivemind writes a PeerID as a version 1 CID, which the daemon, like all of
    go-libp2p, takes for a broken address: each ``/p2p/`` is therefore written here.

    Args:
        multiaddr: hivemind's class.

    Raises:
        ValueError: it is no multiaddress.
    """
    first, *named = address.split("/p2p/")
    raw = multiaddr(first).to_bytes()
    for part in named:
        peer, slash, rest = part.partition("/")
        multihash = decode_base58(peer)
        if not multihash or len(multihash) > 127:
            raise ValueError(f"{peer!r} is no peer id")
        raw += P2P + bytes((len(multihash),)) + multihash
        raw += multiaddr(slash + rest).to_bytes() if rest else b""
    return multiaddr(raw)


def own(addresses: Iterable[Any], peer: str) -> tuple[str, ...]:
    """Full addresses of a node, those through relays first.

    None where its daemon tells none: one that peers cannot dial keeps its public addresses to
    itself, and may have no others until somebody relays for it.
    """
    found = (f"{address}/p2p/{peer}" for address in addresses)
    return tuple(sorted(found, key=is_relayed, reverse=True))


def by_peer(peers: Iterable[Any]) -> dict[str, tuple[str, ...]]:
    """Full addresses of connections by peer id, direct ones first.

    A daemon speaks more transports than hivemind has names for, and a peer chooses which of them
    it listens by: one that comes or is reached by such a transport has no address.
    """
    found: dict[str, list[str]] = {}
    for peer in peers:
        name = str(peer.peer_id)
        readable = filter(None, map(_text, peer.addrs))
        found.setdefault(name, []).extend(f"{address}/p2p/{name}" for address in readable)
    return {name: tuple(sorted(each, key=is_relayed)) for name, each in found.items()}


def _text(address: Any) -> str:
    """A multiaddress in words; empty where it has a part that hivemind does not know."""
    try:
        return str(address)
    except ValueError:
        return ""
