"""Refusals on their way from the network's threads to whoever counts them."""

from __future__ import annotations

import threading
from collections import Counter

MOST = 4_096
NOBODY = b""
"""Stands for every author beyond so many."""


class Tally:
    """Counts refusals by author and reason until somebody takes them; used by several threads."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[bytes, str]] = Counter()
        self._lock = threading.Lock()

    def refused(self, author: bytes, reason: str, n: int) -> None:
        """Count refusals, as :meth:`swarm.accounts.Accounts.refuse` is told of them."""
        with self._lock:
            known = (author, reason) in self._counts or len(self._counts) < MOST
            self._counts[author if known else NOBODY, reason] += n

    def take(self) -> Counter[tuple[bytes, str]]:
        """What was counted since the last time."""
        with self._lock:
            taken, self._counts = self._counts, Counter()
        return taken
