"""Named totals: every refusal, failure and byte is counted here and shown by the monitor."""

from __future__ import annotations

import threading


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
