"""How many requests a client may make."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

AT_ONCE = 240
A_SECOND = 40.0
CLIENTS = 1024
"""Remembered; of more, whoever has asked last longest ago is a new one again."""


class Rate:
    """A bucket of requests for each client, which fills again at an even rate.

    Args:
        now: seconds of a clock that only goes forward.
        a_second: requests; six times as many at once.
    """

    def __init__(
        self, now: Callable[[], float] = time.monotonic, a_second: float = A_SECOND
    ) -> None:
        self._now = now
        self._a_second = a_second
        self._at_once = a_second * AT_ONCE / A_SECOND
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Whether a client may make one more request now."""
        now = self._now()
        left, at = self._left.pop(client, (self._at_once, now))
        left = min(self._at_once, left + (now - at) * self._a_second)
        allowed = left >= 1.0
        self._left[client] = (left - allowed, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return allowed
