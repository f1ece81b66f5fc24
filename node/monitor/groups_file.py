"""``groups.jsonl``: the last groups of a node, token by token, in its run folder."""

from __future__ import annotations

import errno
import json
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from io import FileIO
from pathlib import Path

from node.concurrency.work_thread import WorkThread
from node.monitor.groups import ORIGINS, ShownGroup
from node.monitor.record import RoundRecord
from node.storage.atomic_files import replacing, write_error
from swarm.common.util import make_private

MOST_BYTES = 4 << 20
KEPT = 70
"""Groups of each origin that stay when the file is full, of half of its bytes at most together."""
SECONDS = 2.0
"""Between two writes: some rounds take a hundredth of that."""


class GroupsFile:
    """A sink that appends what there is to be shown, on a thread of its own.

    When the file is full, the newest groups of each origin stay: who sends much that is refused
    takes no place from the others.

    Args:
        latest: the groups to be written.
        now: seconds of a clock that only goes forward.
    """

    def __init__(
        self,
        path: Path,
        latest: Callable[[], Sequence[ShownGroup]],
        most_bytes: int = MOST_BYTES,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._latest = latest
        self._most = most_bytes
        self._now = now
        self._number: int | None = None
        self._written = float("-inf")
        self._thread = WorkThread("groups")
        self._work: Future[None] | None = None

    def write(self, record: RoundRecord) -> None:
        """Have the latest groups written, unless that was done a moment ago.

        Raises:
            NodeError: those before could not be written.
        """
        if self._now() - self._written < SECONDS or (self._work and not self._work.done()):
            return
        self._written = self._now()
        done, groups = self._work, self._latest()
        self._work = self._thread.submit(lambda: self._append(groups))
        if done:
            done.result()

    def close(self) -> None:
        """Wait until everything is written; harmless when called twice."""
        done, self._work = self._work, None
        self._thread.close()
        if done:
            done.result()

    def _append(self, groups: Sequence[ShownGroup]) -> None:
        try:
            if self._number is None:
                self._number = max((_number(line) for line in _lines(self._path)), default=0)
            first = self._number + 1
            data = b"".join(group.line(n) for n, group in enumerate(groups, first))
            self._number += len(groups)
            if self._size() + len(data) > self._most:
                self._thin()
            with make_private(self._path).open("ab+", buffering=0) as file:
                _end_line(file)
                if file.write(data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise write_error(self._path, error) from error

    def _size(self) -> int:
        return self._path.stat().st_size if self._path.exists() else 0

    def _thin(self) -> None:
        room = {origin: self._most // (2 * len(ORIGINS)) for origin in ORIGINS}
        count = dict.fromkeys(ORIGINS, KEPT)
        kept: deque[bytes] = deque()
        for line in reversed(list(_lines(self._path))):
            origin = json.loads(line)["origin"]
            count[origin] -= 1
            room[origin] -= len(line)
            if count[origin] >= 0 and room[origin] >= 0:
                kept.appendleft(line)
        with replacing(self._path, durable=False) as draft:
            draft.writelines(kept)


def _end_line(file: FileIO) -> None:
    """Close the line of which a process that was killed, or a full disk, has left half."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _lines(path: Path) -> Iterator[bytes]:
    """Those that are groups: a process that was killed may have left half of one."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if _number(line):
                yield line


def _number(line: bytes) -> int:
    """A group's number; 0 where the line is none."""
    try:
        values = json.loads(line)
        whole = line.endswith(b"\n") and values["origin"] in ORIGINS
        return int(values["id"]) if whole else 0
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0
