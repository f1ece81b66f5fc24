"""How far away the connected peers are and how their clocks go, measured one after the other."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping

from swarm.common.clock import Clock
from swarm.common.counters import Counters
from swarm.transport import protobuf
from swarm.transport.node import Node
from swarm.transport.timing import Timing
from swarm.transport.transport import TransportError

logger = logging.getLogger(__name__)

PING = "DHTProtocol.rpc_ping"
CLOCK_FIELD = 4
"""Of the answer: the peer's clock, a double in unix seconds (section 10 of the protocol)."""

EVERY_SECONDS = 60.0
"""Between two measurements of one peer: some 300 bytes each way."""

END_OF_TIME = 2.0**33
"""Unix seconds, in the year 2242."""


class Timings:
    """Measures whoever is connected and was not measured for longest, one at a time.

    Attributes:
        latest: of each connected peer that answered when it was last asked, by peer id.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self.latest: Mapping[str, Timing] = {}
        self._clock = clock
        self._counters = counters
        self._asked: dict[str, float] = {}

    def due(self, connected: Collection[str]) -> str:
        """The peer to measure now, thereby taken as asked; empty: none. Forgets who is gone."""
        now = self._clock.monotonic()
        self._asked = {peer: self._asked.get(peer, -math.inf) for peer in connected}
        self.latest = {peer: each for peer, each in self.latest.items() if peer in self._asked}
        peer = min(self._asked, key=self._asked.__getitem__, default="")
        if not peer or now - self._asked[peer] < EVERY_SECONDS:
            return ""
        self._asked[peer] = now
        return peer

    async def measure(self, node: Node, peer: str) -> None:
        """Call a peer, and note what that tells; nothing is left of one that does not answer."""
        asked, began = self._clock.time(), self._clock.monotonic()
        try:
            theirs = _clock_in(await node.call(peer, PING, b""))
        except (TransportError, ValueError, OSError, EOFError) as error:
            self._counters.add("pings_unanswered")
            logger.debug("peer %s does not tell its clock: %s", peer, error)
            self.latest = {each: timing for each, timing in self.latest.items() if each != peer}
            return
        took = self._clock.monotonic() - began
        if peer in self._asked:  # it may have gone meanwhile
            self.latest = {**self.latest, peer: Timing(took, theirs - asked - took / 2)}


def _clock_in(answer: bytes) -> float:
    value = protobuf.decode(answer).get(CLOCK_FIELD, [math.nan])[-1]
    if not isinstance(value, float) or not 0.0 <= value < END_OF_TIME:
        raise ValueError(f"its clock says {value!r}, no unix time")
    return value
