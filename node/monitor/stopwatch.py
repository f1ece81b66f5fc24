"""Where a round's time goes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Adds up wall-clock seconds by part; parts must not nest."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._started = time.perf_counter()

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Count the time spent inside the block for ``part``."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[part] += time.perf_counter() - begin

    def split(self) -> dict[str, float]:
        """Seconds by part since the last split, with ``idle`` (unaccounted) and ``total``."""
        now = time.perf_counter()
        total, self._started = now - self._started, now
        seconds, self._seconds = dict(self._seconds), defaultdict(float)
        return {**seconds, "idle": max(0.0, total - sum(seconds.values())), "total": total}
