"""What peers may cost this node: one allowance for all, fair between those who use it."""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass

from swarm.common.clock import Clock
from swarm.common.known_peers import KEPT, Standings

BURST_SECONDS = 4.0
PEER_SHARE = 0.25
GREED = 0.5
"""A peer may have used this much of what is left unused by all."""

LEAST_COST = 1024
"""Least bytes that a message is charged, so that small ones are bounded in number too."""

MAX_PEERS = 4096


@dataclass(slots=True)
class _Use:
    """Bytes charged, fading by a factor e in ``BURST_SECONDS``."""

    bytes: float
    at: float

    def fade(self, now: float) -> float:
        self.bytes *= math.exp((self.at - now) / BURST_SECONDS)
        self.at = now
        return self.bytes


class ByteBudget:
    """Decides whether a message from or to a peer may be handled now.

    What was charged lately, to one and to all, may not exceed the burst. A peer may go on only
    while it has used at most half of what is still free: n greedy ones so end at equal shares of
    2 : n with the free rest, and a newcomer always finds room (dynamic thresholds, Choudhury and
    Hahne, 1998). Strangers together leave a quarter to known peers.

    Args:
        rate: bytes a second over all peers; one peer gets up to a quarter of it.
        largest: bytes of the largest message; each can be handled once its peer has waited long
            enough.
        standings: who is known.
    """

    def __init__(self, rate: float, largest: int, clock: Clock, standings: Standings) -> None:
        # So that the largest message fits again once a burst's time has passed since the last.
        least = largest / (PEER_SHARE * -math.expm1(-1.0))
        self._burst = max(BURST_SECONDS * rate, least)
        self._clock = clock
        self._standings = standings
        self._all = _Use(0.0, clock.monotonic())
        self._strangers = _Use(0.0, clock.monotonic())
        self._peers: OrderedDict[str, _Use] = OrderedDict()

    def has_room(self, peer: str, size: int = LEAST_COST) -> bool:
        """Whether a message of ``size`` bytes would be handled."""
        return self._allows(peer, size, self._clock.monotonic())

    def take(self, peer: str, size: int) -> bool:
        """Charge a message of ``size`` bytes to ``peer`` if that leaves enough to others."""
        now = self._clock.monotonic()
        cost = max(size, LEAST_COST)
        if not self._allows(peer, cost, now):
            return False
        self._charge(peer, cost, now)
        return True

    def owe(self, peer: str, size: int) -> None:
        """Charge what was not known before it was sent, whatever is left."""
        self._charge(peer, size, self._clock.monotonic())

    def _allows(self, peer: str, cost: int, now: float) -> bool:
        free = self._burst - self._all.fade(now)
        if not self._standings.knows(peer):
            free = min(free, self._burst * (1.0 - KEPT) - self._strangers.fade(now))
        used = self._peers[peer].fade(now) if peer in self._peers else 0.0
        if used + cost > self._burst * PEER_SHARE:
            return False
        first = used < LEAST_COST and cost <= free
        return first or used + cost <= GREED * free

    def _charge(self, peer: str, cost: int, now: float) -> None:
        use = self._peers.pop(peer, None) or _Use(0.0, now)
        stranger = not self._standings.knows(peer)
        for each in (use, self._all, self._strangers) if stranger else (use, self._all):
            each.fade(now)
            each.bytes += cost
        self._peers[peer] = use
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
