"""What a transport remembers of the peers that ask it for something."""

from __future__ import annotations

import logging
from collections.abc import Callable

from swarm.backoff import Backoff
from swarm.clock import Clock
from swarm.counters import Counters
from swarm.flood import Flood
from swarm.known_peers import Standings

logger = logging.getLogger(__name__)

FREE_TIMEOUTS = 3
FIRST_PAUSE = 2.0
LONGEST_PAUSE = 120.0


class Guests:
    """Standing, patience and floods of the peers of all services of one transport.

    Attributes:
        standings: who is known to be useful.
        show_out: called with the id of a peer that floods this node, to end its connections.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.clock = clock
        self.standings = Standings(clock)
        self.show_out: Callable[[str], None] = lambda peer: None
        self._counters = counters
        self._patience: Backoff[str] = Backoff(
            clock, first=FIRST_PAUSE, longest=LONGEST_PAUSE, free=FREE_TIMEOUTS
        )
        self._flood = Flood(clock)

    def welcome(self, peer: str) -> bool:
        """Whether a peer is listened to at all now."""
        return not self._patience.waits(peer)

    def let_wait(self, peer: str) -> None:
        """Note that a peer did not complete its request or did not take its answer in time."""
        pause = self._patience.failed(peer)
        if pause:
            self._counters.add("peers_backed_off")
            logger.info("peer %s lets this node wait and is refused for %g s", peer, pause)

    def kept_time(self, peer: str) -> None:
        """Note that a peer did."""
        self._patience.succeeded(peer)

    def refused(self, peer: str) -> None:
        """Note a refusal; a peer that goes on and on is shown out."""
        if self._flood.refused(peer):
            self._counters.add("peers_shown_out")
            logger.info("peer %s floods this node and is disconnected", peer)
            self.show_out(peer)
