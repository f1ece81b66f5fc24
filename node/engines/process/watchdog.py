"""Telling an engine that hangs from one that is slow."""

from __future__ import annotations

import threading
from typing import Any

PULSE_SECONDS = 1.0
"""Most seconds, and a step, between two messages of an engine that works."""
START_SECONDS = 1800.0
"""Compiling and measuring a large model takes minutes, on which nothing can be said."""


class Silence:
    """How long an engine has owed its owner a word.

    It owes one from a message that it was sent until it says that it has handled them all and has
    nothing left to write. Silence is counted in the ticks of whoever watches, not by the clock:
    an owner that was stopped for an hour has watched for none of it, and finds what was said
    meanwhile.

    Args:
        patience: seconds of silence before an engine that has started counts as hung.

    Attributes:
        ready: whether it has started; until then it may be silent for ``START_SECONDS``, or for
            ``patience`` where that is more.
        seconds: of silence, as of the last tick.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lock = threading.Lock()
        self._sent = 0
        self._handled = 0
        self._heard = False
        self.ready = False
        self.seconds = 0.0

    @property
    def bound(self) -> float:
        """Seconds of silence that are too long."""
        return self._patience if self.ready else max(self._patience, START_SECONDS)

    @property
    def too_long(self) -> bool:
        """Whether it counts as hung."""
        return self.seconds >= self.bound

    def send(self) -> None:
        """Note a message to the engine, before it is sent."""
        with self._lock:
            self._sent += 1

    def hear(self, message: dict[str, Any]) -> None:
        """Note a message of the engine."""
        with self._lock:
            self._heard = True
            self._handled = message.get("idle", self._handled)
            self.ready = self.ready or "ready" in message

    def tick(self, seconds: float) -> None:
        """Note that so many seconds were watched."""
        with self._lock:
            owes = self._handled < self._sent and not self._heard
            self.seconds = self.seconds + seconds if owes else 0.0
            self._heard = False
