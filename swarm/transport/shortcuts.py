"""Which relayed connections to begin anew, and when: a pure state machine on an injected clock.

A daemon tries for a direct connection only as a relayed one begins, and only once its peers have
told it where they see it, which takes some seconds (github.com/libp2p/specs, relay/DCUtR.md).
A connection that began sooner would stay relayed for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swarm.common.clock import Clock
from swarm.transport.reach import links_of

SETTLED_SECONDS = 20.0
"""After which both ends of a connection have been told where they are seen."""

AGAIN_SECONDS = 1800.0
"""Between two attempts with a peer: what a relayed connection lives at most."""


class Shortcuts:
    """Each relayed peer once, when its connection has lasted, by one of its two ends."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[str, float] = {}
        self._tried: dict[str, float] = {}

    def due(self, own: str, connected: Mapping[str, Sequence[str]]) -> str:
        """The peer to hang up on and to dial again now, thereby taken as tried; empty: none.

        Args:
            own: peer id of this node.
            connected: addresses of the peers connected, by peer id.
        """
        now = self._clock.monotonic()
        relayed = [peer for peer, link in links_of(connected).items() if link == "relayed"]
        self._since = {peer: self._since.get(peer, now) for peer in relayed}
        self._tried = {p: at for p, at in self._tried.items() if now - at < AGAIN_SECONDS}
        # One end alone, for who is hung up on is just being dialled.
        ours = (peer for peer in relayed if own < peer and peer not in self._tried)
        peer = next((p for p in ours if now - self._since[p] >= SETTLED_SECONDS), "")
        if peer:
            self._tried[peer] = now
        return peer
