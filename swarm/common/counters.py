"""Named totals: every refusal, failure and byte is counted here and shown by the monitor."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from swarm.common.clock import Clock


class Counters:
    """Thread-safe totals under names with labels, as in ``refused{reason=bad_signature}``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[str, float] = {}

    def add(self, name: str, n: float = 1, **labels: str) -> None:
        """Add ``n`` to the total under ``name`` and ``labels``, whose order does not matter."""
        key = name
        if labels:
            key += "{" + ",".join(f"{k}={labels[k]}" for k in sorted(labels)) + "}"
        with self._lock:
            self._totals[key] = self._totals.get(key, 0.0) + n

    def snapshot(self) -> dict[str, float]:
        """All totals so far, by name, sorted."""
        with self._lock:
            return {name: self._totals[name] for name in sorted(self._totals)}


PERIOD_SECONDS = 600.0
LINES = 8
"""Of messages that differ in what they name only, in one period."""
MAX_KINDS = 1024
_TOLD = "repeats_told"
UNREPEATED = {_TOLD: True}
"""What a message has as ``extra`` that is always told, such as a round's."""


@dataclass(slots=True)
class _Kind:
    """Messages of one wording, in the period that began at ``since``."""

    since: float
    told: set[tuple[str, ...]] = field(default_factory=set)
    untold: int = 0


class Repeats(logging.Filter):
    """Lets through of a message that repeats one line every ten minutes, with the number of others.

    Messages are alike when they have one wording and name the same things, whatever their numbers.
    Of those of one wording that name different things, as peers that anybody may make up, only
    the first few are let through. Debugging is left as it is.

    One filter serves all handlers of a log: a message is counted once.

    Args:
        clock: whose monotonic time it goes by.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: OrderedDict[tuple[str, int, str], _Kind] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a message is told; the number of untold ones is put at its end."""
        if record.levelno <= logging.DEBUG:
            return True
        found = vars(record)
        with self._lock:
            if _TOLD not in found:  # else another handler has asked
                found[_TOLD] = self._take(record)
            return bool(found[_TOLD])

    def _take(self, record: logging.LogRecord) -> bool:
        now = self._clock.monotonic()
        # What is nothing but "%s" is a message that was made elsewhere.
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
    """What a message names: its arguments but numbers, and the error that it tells of."""
    found = record.args if isinstance(record.args, tuple) else (record.args,)
    names = tuple(str(each) for each in found if not isinstance(each, int | float))
    error = record.exc_info[0] if record.exc_info else None
    return (*names, error.__name__) if error else names


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
