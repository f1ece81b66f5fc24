"""Counters that the monitor shows, a filter for repeated log messages, and a clock watch."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from swarm.common.clock import Clock


class Counters:
    """Thread-safe totals by name and labels, as in ``refused{reason=bad_signature}``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}

    def add(self, name: str, n: float = 1, **labels: str) -> None:
        """Add ``n`` to a total; the order of ``labels`` does not matter."""
        key = name
        if labels:
            key += "{" + ",".join(f"{k}={labels[k]}" for k in sorted(labels)) + "}"
        with self._lock:
            self._totals[key] = self._totals.get(key, 0.0) + n

    def snapshot(self) -> dict[str, float]:
        """Return all totals so far, sorted by name."""
        with self._lock:
            return {name: self._totals[name] for name in sorted(self._totals)}


PERIOD_SECONDS = 600.0
LINES = 8  # messages per wording and period that differ only in the names they contain
MAX_KINDS = 1024
_TOLD = "repeats_told"
UNREPEATED = {_TOLD: True}
"""The ``extra`` of a message that is always logged, such as a round's."""


@dataclass(slots=True)
class _Kind:
    since: float
    told: set[tuple[str, ...]] = field(default_factory=set)
    untold: int = 0


class Repeats(logging.Filter):
    """A filter that logs a repeated message once per ten minutes, with a count.

    Messages are alike if they have one wording and contain the same names, ignoring numbers. Peers
    can invent names, so of one wording only the first few messages with different names pass. Debug
    messages always pass. One filter serves all handlers of a log, so each message is counted once.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        found = vars(record)
        with self._lock:
            if _TOLD not in found:  # otherwise another handler called first
                found[_TOLD] = self._take(record)
            return bool(found[_TOLD])

    def _take(self, record: logging.LogRecord) -> bool:
        now = self._clock.monotonic()
        # With the format "%s" the argument is the complete message.
        wording = record.getMessage() if record.msg == "%s" else str(record.msg)
        key, names = (record.name, record.levelno, wording), _names(record)
        kind = self._kinds.get(key)
        if kind is None or now - kind.since >= PERIOD_SECONDS:
            if kind is not None and kind.untold:
                minutes = (now - kind.since) / 60
                text = f"{record.getMessage()} ({kind.untold} more like it in {minutes:.0f} min)"
                record.msg, record.args = text, ()
            kind = self._kinds[key] = _Kind(now)
            self._kinds.move_to_end(key)
            if len(self._kinds) > MAX_KINDS:
                self._kinds.popitem(last=False)
        if names in kind.told or len(kind.told) == LINES:
            kind.untold += 1
            return False
        kind.told.add(names)
        return True


def _names(record: logging.LogRecord) -> tuple[str, ...]:
    found = record.args if isinstance(record.args, tuple) else (record.args,)
    names = tuple(str(each) for each in found if not isinstance(each, int | float))
    error = record.exc_info[0] if record.exc_info else None
    return (*names, error.__name__) if error else names


log = logging.getLogger(__name__)

LEAST_STEP = 2.0  # seconds; more than time services correct in one step


class ClockWatch:
    """Reports and counts (``clock_steps``) jumps of the wall clock.

    Durations use the monotonic clock, so a jump does not affect them. Time slots and expiries,
    which peers agree on by wall time, follow the new time from the next turn.
    """

    def __init__(self, clock: Clock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self._offset = self._read()

    def look(self) -> float:
        """Return the seconds that the clock jumped since the last call, or 0."""
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
