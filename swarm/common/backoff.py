"""Whom to leave alone for a while, because it let this node wait: on an injected clock."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

from swarm.common.clock import Clock

K = TypeVar("K", bound=Hashable)

MAX_REMEMBERED = 4096


class Backoff(Generic[K]):
    """Pauses that double with every failure in a row and are forgotten at the first success.

    Args:
        first: seconds of the first pause.
        longest: seconds of a pause at most; a failure this long ago is forgotten too.
        free: failures in a row that cost nothing, for everybody has a bad moment.
    """

    def __init__(self, clock: Clock, *, first: float, longest: float, free: int = 0) -> None:
        self._clock = clock
        self._first = first
        self._longest = longest
        self._free = free
        self._failures: dict[K, tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, key: K) -> float:
        """Note a failure; seconds of the pause that begins now."""
        count = self._count(key) + 1
        pause = 0.0
        if count > self._free:
            pause = min(self._longest, self._first * 2.0 ** min(count - self._free - 1, 60))
        # The oldest go first: who makes others be forgotten by new keys forgets its own at that.
        self._failures.pop(key, None)
        if len(self._failures) >= MAX_REMEMBERED:
            del self._failures[next(iter(self._failures))]
        self._failures[key] = count, self._clock.monotonic() + pause
        return pause

    def succeeded(self, key: K) -> None:
        """Forget a key's failures."""
        self._failures.pop(key, None)

    def waits(self, key: K) -> bool:
        """Whether the key's pause is not over."""
        return key in self._failures and self._failures[key][1] > self._clock.monotonic()

    def _count(self, key: K) -> int:
        count, until = self._failures.get(key, (0, 0.0))
        return count if until + self._longest > self._clock.monotonic() else 0
