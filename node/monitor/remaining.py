"""How long a run that has an end still takes."""

from __future__ import annotations

from collections import deque

from node.monitor.record import RoundRecord
from swarm.common.util import duration

ROUNDS = 32
"""Latest rounds whose mean time counts: an evaluation in ten is in it, and what was long ago is
not."""


class Remaining:
    """Estimates the time to the last round from the rounds so far.

    Args:
        rounds: rounds to be done; 0 when there is no end.
    """

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds
        self._seconds: deque[float] = deque(maxlen=ROUNDS)

    def after(self, record: RoundRecord) -> str:
        """Such as "about 12 min left"; empty without an end, and at it."""
        if "total" in record.seconds:
            self._seconds.append(record.seconds["total"])
        left = self._rounds - record.round
        if left <= 0 or not self._seconds:
            return ""
        return f"about {duration(left * sum(self._seconds) / len(self._seconds))} left"
