"""Where peers listen, as they or others said."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from secrets import token_bytes

from swarm.common.fair_limits import Bounded, lot
from swarm.transport.libp2p.addresses import Place, place_of
from swarm.transport.reach import is_relayed

MAX_PEERS = 4096
MOST_EACH = 8


class Book:
    """A few addresses of each of a bounded number of peers, those that answered first."""

    def __init__(self) -> None:
        secret = token_bytes(32)
        self._known: Bounded[str, dict[str, None]] = Bounded(
            MAX_PEERS, lambda peer: lot(secret, peer.encode())
        )

    def of(self, peer: str) -> tuple[str, ...]:
        """Addresses of a peer, without its id."""
        return tuple(self._known.get(peer) or ())

    def met(self, peer: str, places: Sequence[Place]) -> tuple[str, ...]:
        """Addresses of a peer that is connected, direct ones first where a connection is direct.

        Args:
            places: where its connections come from or go to; at what port it listens is its word.
        """
        known = sorted(self.of(peer), key=is_relayed)
        if all(place.relay for place in places):
            relayed = [address for address in known if is_relayed(address)]
            return tuple(relayed or map(str, places))
        if known and is_relayed(known[0]):
            return (*(str(place) for place in places if not place.relay), *known)
        return tuple(known)

    def answered(self, peer: str, address: str) -> None:
        """Note an address at which a peer was met."""
        self._note(peer, [address, *self.of(peer)])

    def said(self, peer: str, addresses: Iterable[str]) -> None:
        """Note what a peer says of itself, before what others said."""
        self._note(peer, [*addresses, *self.of(peer)])

    def told(self, peer: str, addresses: Iterable[str]) -> None:
        """Note what somebody says of another."""
        self._note(peer, [*self.of(peer), *addresses])

    def _note(self, peer: str, addresses: Iterable[str]) -> None:
        usable = [address for address in dict.fromkeys(addresses) if _usable(address)]
        if usable:
            self._known.put(peer, dict.fromkeys(usable[:MOST_EACH]))


def _usable(address: str) -> bool:
    try:
        return place_of(address).port > 0
    except ValueError:
        return False
