"""Counters that the monitor shows, a filter for repeated log messages, and a clock watch."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from swarm.common.clock import Clock

log = logging.getLogger(__name__)

PERIOD_SECONDS = 600.0
LINES = 8  # messages per wording and period that differ only in the names they contain
MAX_WORDINGS = 1024
_PASSES = "repeats_passes"
UNREPEATED = {_PASSES: True}  # the ``extra`` of a message that is always logged, such as a round's
LEAST_STEP = 2.0  # seconds; more than time services correct in one step


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


@dataclass(slots=True)
class _Wording:
    since: float
    logged: set[tuple[str, ...]] = field(default_factory=set)
    suppressed: int = 0


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
        self._wordings: OrderedDict[tuple[str, int, str], _Wording] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno <= logging.DEBUG:
            return True
        fields = vars(record)
        with self._lock:
            if _PASSES not in fields:  # otherwise another handler called first
                fields[_PASSES] = self._take(record)
            return bool(fields[_PASSES])

    def _take(self, record: logging.LogRecord) -> bool:
        now = self._clock.monotonic()
        # With the format "%s" the argument is the complete message.
        wording = record.getMessage() if record.msg == "%s" else str(record.msg)
        key, names = (record.name, record.levelno, wording), _names(record)
        entry = self._wordings.get(key)
        if entry is None or now - entry.since >= PERIOD_SECONDS:
            if entry is not None and entry.suppressed:
                note = f"{entry.suppressed} similar messages in {(now - entry.since) / 60:.0f} min"
                record.msg, record.args = f"{record.getMessage()} ({note})", ()
            entry = self._wordings[key] = _Wording(now)
            self._wordings.move_to_end(key)
            if len(self._wordings) > MAX_WORDINGS:
                self._wordings.popitem(last=False)
        if names in entry.logged or len(entry.logged) == LINES:
            entry.suppressed += 1
            return False
        entry.logged.add(names)
        return True


def _names(record: logging.LogRecord) -> tuple[str, ...]:
    args = record.args if isinstance(record.args, tuple) else (record.args,)
    names = tuple(str(arg) for arg in args if not isinstance(arg, int | float))
    error = record.exc_info[0] if record.exc_info else None
    return (*names, error.__name__) if error else names


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
        previous, self._offset = self._offset, self._read()
        step = self._offset - previous
        if abs(step) < LEAST_STEP:
            return 0.0
        self._counters.add("clock_steps")
        log.warning(
            "this machine's clock moved by %+.1f s: announcements and groups use the new time; "
            "synchronize it with a time service",
            step,
        )
        return step

    def _read(self) -> float:
        return self._clock.time() - self._clock.monotonic()
