"""The records of a node as it writes them."""

from __future__ import annotations

from collections import deque
from pathlib import Path

from node.monitor.history import GrowingLines, parsed
from node.monitor.record import RoundRecord

KEPT = 4096
"""Records of the last rounds, for a swarm that runs until somebody stops it."""


class RecordTail:
    """Reads what a metrics file has got since the last look, so that looking never takes longer.

    A file that takes the place of the one before is read from its beginning; a round counts once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines = GrowingLines()
        self._records: deque[RoundRecord] = deque(maxlen=KEPT)

    def look(self) -> list[RoundRecord]:
        """The records of the last rounds, oldest first; empty before the first round's end."""
        lines, _ = self._lines.new([self._path])
        for record in map(parsed, lines):
            if not self._records or record.round > self._records[-1].round:
                self._records.append(record)
        return list(self._records)
