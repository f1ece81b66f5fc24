"""The records of a node as it writes them."""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path

from node.monitor.history import parsed
from node.monitor.record import RoundRecord

KEPT = 4096
"""Records of the last rounds, for a swarm that runs until somebody stops it."""


class RecordTail:
    """Reads what a metrics file has got since the last look, so that looking never takes longer.

    A file that takes the place of the one before is read from its beginning; a round counts once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = 0
        self._read = 0
        self._records: deque[RoundRecord] = deque(maxlen=KEPT)

    def look(self) -> list[RoundRecord]:
        """The records of the last rounds, oldest first; empty before the first round's end."""
        if self._path.exists():
            with self._path.open("rb") as file:
                inode = os.fstat(file.fileno()).st_ino
                if inode != self._file:
                    self._file, self._read = inode, 0
                file.seek(self._read)
                for line in file:
                    self._take(line)
        return list(self._records)

    def _take(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # in the middle of being written
        self._read += len(line)
        record = parsed(line)
        if not self._records or record.round > self._records[-1].round:
            self._records.append(record)
