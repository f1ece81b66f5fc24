"""Messages of a log that come again and again: told when they begin, and then counted."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from swarm.common.clock import Clock

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
