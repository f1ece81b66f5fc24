"""Whether the wall clock was moved: by its difference from one that only goes on."""

from __future__ import annotations

import logging

from swarm.common.clock import Clock
from swarm.common.counters import Counters

log = logging.getLogger(__name__)

LEAST_STEP = 2.0
"""Seconds; what time services put right in one go is less."""


class ClockWatch:
    """Tells and counts (``clock_steps``) when wall time jumps.

    Durations are measured on the other clock and outlast it. What peers agree on by wall time,
    epochs and expiries, is of the new time from the next turn on.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self._offset = self._read()

    def look(self) -> float:
        """Seconds that the clock was moved by since the last look; 0 where it was not."""
        before, self._offset = self._offset, self._read()
        step = self._offset - before
        if abs(step) < LEAST_STEP:
            return 0.0
        self._counters.add("clock_steps")
        log.warning(
            "this machine's clock was moved by %+.1f s: announcements and groups count from the "
            "new time; keep it right with a time service",
            step,
        )
        return step

    def _read(self) -> float:
        return self._clock.time() - self._clock.monotonic()
