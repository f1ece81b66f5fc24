"""What a transport remembers of the peers that ask it for something."""

from __future__ import annotations

import logging
from collections.abc import Callable

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.common.fair_limits import Backoff, Standings
from swarm.transport.flood import Flood

logger = logging.getLogger(__name__)

FREE_TIMEOUTS = 3
FIRST_PAUSE = 2.0
FLOOD_PAUSE = 10.0
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
        self._outside: Backoff[str] = Backoff(clock, first=FLOOD_PAUSE, longest=LONGEST_PAUSE)

    def welcome(self, peer: str) -> bool:
        """Whether a peer's requests are listened to now."""
        return not (self._patience.waits(peer) or self.shown_out(peer))

    def shown_out(self, peer: str) -> bool:
        """Whether a peer flooded this node lately and is not to be back yet."""
        return self._outside.waits(peer)

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
        """Note a refusal; a peer that goes on and on is shown out, and again if it comes back."""
        if not self.shown_out(peer):
            if not self._flood.refused(peer):
                return
            pause = self._outside.failed(peer)
            logger.info("peer %s floods this node and is kept out for %g s", peer, pause)
        self._counters.add("peers_shown_out")
        self.show_out(peer)
