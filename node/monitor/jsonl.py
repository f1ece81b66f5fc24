"""Records as JSON lines, one a round."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import deque
from pathlib import Path

from node.monitor.record import RoundRecord
from node.storage.atomic_files import write_error
from swarm.common.private_file import make_private

LARGEST_BYTES = 64 << 20
"""Some 60,000 rounds."""
MOST_UNWRITTEN = 4096
"""Lines that wait for room on the disk."""


class JsonLinesFile:
    """Appends records to a file; one that is full is kept as ``….1``, in place of the one before.

    Rounds that were lost in a crash and done again stand in it twice; the later line counts.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._unwritten: deque[bytes] = deque(maxlen=MOST_UNWRITTEN)
        _drop_half_line(path)
        # unbuffered: what failed to be written must not be tried again by close()
        self.file = make_private(path).open("ab", buffering=0)

    def write(self, record: RoundRecord) -> None:
        """Append one line and hand it to the system.

        Raises:
            NodeError: it cannot be written, as when there is no space for it; the next call tries
                again.
        """
        self._unwritten.append(_line(record))
        try:
            while self._unwritten:
                self._append(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            raise write_error(self._path, error) from error

    def close(self) -> None:
        """Close the file."""
        self.file.close()

    def _append(self, line: bytes) -> None:
        if self.file.tell() + len(line) > LARGEST_BYTES:
            self._turn_over()
        begin = self.file.tell()
        if self.file.write(line) < len(line):
            self.file.truncate(begin)
            self.file.seek(begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _turn_over(self) -> None:
        self.file.close()
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self.file = make_private(self._path).open("ab", buffering=0)


class JsonLinesOutput:
    """Prints records to standard output, for other programs to read."""

    def write(self, record: RoundRecord) -> None:
        """Print one line."""
        sys.stdout.write(_line(record).decode())
        sys.stdout.flush()

    def close(self) -> None:
        """Standard output stays open."""


def read_records(path: Path) -> list[RoundRecord]:
    """All records of a file, a last half line left out; empty when there is no file."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [RoundRecord.from_dict(json.loads(line)) for line in lines]


def _line(record: RoundRecord) -> bytes:
    return json.dumps(record.to_dict(), allow_nan=False).encode() + b"\n"


def _drop_half_line(path: Path) -> None:
    """Cut what a killed process left behind the last line's end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
