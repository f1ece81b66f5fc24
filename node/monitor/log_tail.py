"""The end of a log file, and what is added to it, also while it is kept under another name."""

from __future__ import annotations

import os
from collections import deque
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from node.errors import NodeError
from node.monitor.logs import earlier_logs


class LogTail:
    """Reads a log as lines, from its beginning or from its end on.

    Args:
        path: of the file that is written to; earlier ones lie beside it.
        skip: begin behind what is there.

    Raises:
        NodeError: there is no such file, or it may not be read.
    """

    def __init__(self, path: Path, *, skip: bool = False) -> None:
        self._path = path
        self._begun = b""
        self._file = self._opened(path)
        if skip:
            self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def last(self, count: int) -> list[str]:
        """The last whole lines that there are, of earlier files too; :meth:`new` goes on there."""
        lines = deque(self.new(), maxlen=count)
        for path in earlier_logs(self._path):
            room = count - len(lines)
            if room <= 0 or not path.exists():
                break
            earlier = path.read_bytes().split(b"\n")[:-1]
            lines.extendleft(_text(line) for line in reversed(earlier[-room:]))
        return list(lines)

    def new(self) -> list[str]:
        """Whole lines that were added since."""
        unread = self._unread()  # first: nothing is added to a file that another one follows
        lines = self._lines()
        for path in unread:
            self._file.close()
            self._file = self._opened(path)
            lines += self._lines()
        return lines

    def rest(self) -> list[str]:
        """What stands behind the last line's end, as of a writer that was killed."""
        return [_text(self._begun)] if self._begun else []

    def _lines(self) -> list[str]:
        *whole, self._begun = (self._begun + self._file.read()).split(b"\n")
        return [_text(line) for line in whole]

    def _unread(self) -> list[Path]:
        """Files that were begun after the one being read, the oldest first."""
        ours = os.fstat(self._file.fileno())
        there = [p for p in (self._path, *earlier_logs(self._path)) if p.exists()]
        newer = takewhile(lambda path: not os.path.samestat(path.stat(), ours), there)
        return list(newer)[::-1]

    @staticmethod
    def _opened(path: Path) -> BinaryIO:
        try:
            return path.open("rb")
        except OSError as error:
            raise NodeError(
                f"cannot read the log ({error.strerror})",
                path,
                "A node writes it once it starts; ask as the user that it runs as.",
            ) from error


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
