"""What takes the records of a node: a view, a file or a port."""

from __future__ import annotations

from typing import Protocol

from node.monitor.record import RoundRecord


class Sink(Protocol):
    """Takes one record a round, from one thread."""

    def write(self, record: RoundRecord) -> None:
        """Take one record."""

    def close(self) -> None:
        """Flush and release; harmless when called twice."""
