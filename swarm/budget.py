"""What peers may cost this node: a token bucket for all, and one for each peer within it."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from swarm.clock import Clock

BURST_SECONDS = 4.0
PEER_SHARE = 0.25
LEAST_COST = 1024
"""Least bytes that a message is charged, so that small ones are bounded in number too."""

MAX_PEERS = 4096


@dataclass(slots=True)
class _Bucket:
    level: float
    filled: float

    def fill(self, rate: float, now: float) -> None:
        self.level = min(rate * BURST_SECONDS, self.level + rate * (now - self.filled))
        self.filled = now


class ByteBudget:
    """Decides whether a message from or to a peer may be handled now.

    Args:
        rate: bytes a second over all peers; one peer gets up to a quarter of it.
        largest: bytes of the largest message; a bucket never holds less, so each can be handled
            once its peer has waited long enough.
    """

    def __init__(self, rate: float, largest: int, clock: Clock) -> None:
        self._rate = max(rate, largest / (BURST_SECONDS * PEER_SHARE))
        self._clock = clock
        self._all = self._full(self._rate)
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, peer: str, size: int) -> bool:
        """Charge a message of ``size`` bytes to ``peer`` if both buckets hold as much."""
        now = self._clock.time()
        bucket = self._peers.pop(peer, None) or self._full(self._rate * PEER_SHARE)
        self._peers[peer] = bucket
        if len(self._peers) > MAX_PEERS:
            self._peers.popitem(last=False)
        self._all.fill(self._rate, now)
        bucket.fill(self._rate * PEER_SHARE, now)
        cost = max(size, LEAST_COST)
        if cost > bucket.level or cost > self._all.level:
            return False
        bucket.level -= cost
        self._all.level -= cost
        return True

    def _full(self, rate: float) -> _Bucket:
        return _Bucket(rate * BURST_SECONDS, self._clock.time())
