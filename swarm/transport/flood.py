"""Which peer goes on asking however often it is refused: pure, on an injected clock."""

from __future__ import annotations

import math

from swarm.common.clock import Clock

MOST_REFUSALS = 128.0
FADE_SECONDS = 10.0
MAX_REMEMBERED = 4096


class Flood:
    """Counts refusals of each peer; they fade by a factor e in ``FADE_SECONDS``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._refusals: dict[str, tuple[float, float]] = {}

    def refused(self, peer: str) -> bool:
        """Note a refusal; whether it is one too many, upon which counting begins anew."""
        now = self._clock.monotonic()
        count, at = self._refusals.pop(peer, (0.0, now))
        count = 1.0 + count * math.exp((at - now) / FADE_SECONDS)
        if count >= MOST_REFUSALS:
            return True
        if len(self._refusals) >= MAX_REMEMBERED:
            del self._refusals[next(iter(self._refusals))]
        self._refusals[peer] = count, now
        return False
