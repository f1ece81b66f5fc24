"""Records as JSON lines, one a round."""

from __future__ import annotations

import errno
import json
import logging
import os
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from node.monitor.history import files, parsed
from node.monitor.record import RoundRecord
from node.monitor.thinning import Line, thinned
from node.storage.atomic_files import replacing, write_error
from swarm.common.util import make_private

log = logging.getLogger(__name__)

MOST_UNWRITTEN = 4096
"""Lines that wait for room on the disk."""


class JsonLinesFile:
    """Appends records to a file of bounded size that goes on spanning the whole run.

    When it is full, older rounds are thinned until half of it is free (:mod:`.thinning`); the
    thinned file takes the place of the full one in one step, so that a crash finds either.

    Rounds that were lost in a crash and done again stand in it twice; the later line counts.

    Args:
        most_bytes: it never has more, but for a moment as much as half of that lies beside it.
    """

    def __init__(self, path: Path, most_bytes: int) -> None:
        self._path = path
        self._most = most_bytes
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
        if self.file.tell() + len(line) > self._most or len(files(self._path)) > 1:
            self._thin()
        begin = self.file.tell()
        if self.file.write(line) < len(line):
            self.file.truncate(begin)
            self.file.seek(begin)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _thin(self) -> None:
        full = files(self._path)
        with replacing(self._path) as draft:
            draft.writelines(_thinned(full, self._most // 2))
        for earlier in full[:-1]:
            earlier.unlink()
        self.file.close()
        self.file = self._path.open("ab", buffering=0)


class JsonLinesOutput:
    """Prints records to standard output, for other programs to read."""

    def write(self, record: RoundRecord) -> None:
        """Print one line."""
        sys.stdout.write(_line(record).decode())
        sys.stdout.flush()

    def close(self) -> None:
        """Standard output stays open."""


def _line(record: RoundRecord) -> bytes:
    return json.dumps(record.to_dict(), allow_nan=False).encode() + b"\n"


def _thinned(full: Sequence[Path], most: int) -> Iterator[bytes]:
    """The lines of these files that stay; what no reader could read does not."""
    kept = set(thinned([_look(line) for line in _lines(full)], most))
    return (line for place, line in enumerate(_lines(full)) if place in kept)


def _lines(paths: Sequence[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as file:
            yield from file


def _look(line: bytes) -> Line | None:
    try:
        record = parsed(line)
    except ValueError:
        log.warning("a damaged line is taken out of the records of rounds: %r", line[:80])
        return None
    return Line(record.round, record.reward_eval is not None, len(line))


def _drop_half_line(path: Path) -> None:
    """Cut what a killed process left behind the last line's end."""
    if not path.exists():
        return
    with path.open("rb+") as file:
        content = file.read()
        file.truncate(content.rfind(b"\n") + 1)
