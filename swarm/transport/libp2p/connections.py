"""Which connections there are, and with whom. All methods belong to trio's thread."""

from __future__ import annotations

from collections import Counter

from swarm.transport.libp2p.addresses import Place
from swarm.transport.libp2p.stack import Muxed


class Connection:
    """One connection, where it came from or goes to, and whether it was taken or dialled."""

    def __init__(self, muxed: Muxed, place: Place, *, dialled: bool) -> None:
        self.muxed = muxed
        self.place = place
        self.dialled = dialled


class Connections:
    """Those that carry streams, by peer, in the order in which they came."""

    def __init__(self) -> None:
        self._held: dict[str, list[Connection]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def of(self, peer: str) -> tuple[Connection, ...]:
        """Those with one peer, the oldest first."""
        return tuple(self._held.get(peer, ()))

    def places(self) -> dict[str, tuple[Place, ...]]:
        """Where each comes from or goes to, by peer id."""
        return {peer: tuple(each.place for each in held) for peer, held in self._held.items()}

    def best(self, peer: str) -> Connection | None:
        """The latest with a peer, a direct one where there is any."""
        held = self.of(peer)
        direct = [connection for connection in held if not connection.place.relay]
        return next(reversed(direct or held), None)

    def add(self, connection: Connection) -> None:
        """Note one that can carry streams."""
        self._held.setdefault(connection.muxed.peer, []).append(connection)

    def remove(self, connection: Connection) -> None:
        """Forget one that cannot any more, if it is known."""
        peer = connection.muxed.peer
        held = [each for each in self._held.pop(peer, ()) if each is not connection]
        if held:
            self._held[peer] = held

    def most_common(self) -> Connection:
        """The oldest that was taken from whoever has most; raises ``ValueError`` where none was."""
        taken = [each for held in self._held.values() for each in held if not each.dialled]
        sources = Counter(each.place.source for each in taken)
        return max(taken, key=lambda each: sources[each.place.source])
