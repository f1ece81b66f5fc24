"""What another process adds to files of lines, or writes anew."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from node.errors import NodeError


class GrowingLines:
    """Hands out each whole line once, and all of them again where the last file is another one."""

    def __init__(self) -> None:
        self._read: tuple[int, int] | None = None
        self._offset = 0

    def new(self, paths: Sequence[Path]) -> tuple[Iterator[bytes], bool]:
        """The lines that came since, to be gone through at once, and whether all come anew.

        Args:
            paths: the files, the one that grows last; none: nothing is there yet.

        Raises:
            NodeError: one may not be read.
        """
        try:
            file = paths[-1].open("rb") if paths else None
        except FileNotFoundError:
            file = None
        except OSError as error:
            raise _unreadable(paths[-1], error) from error
        if file is None:
            anew = self._read is not None
            self._read, self._offset = None, 0
            return iter(()), anew
        state = os.fstat(file.fileno())
        which = state.st_dev, state.st_ino
        anew = which != self._read or state.st_size < self._offset
        if anew:
            self._read, self._offset = which, 0
        return self._lines(paths[:-1] if anew else (), file), anew

    def _lines(self, earlier: Sequence[Path], last: BinaryIO) -> Iterator[bytes]:
        with last:
            for path in earlier:
                try:
                    with path.open("rb") as file:
                        yield from (line for line in file if line.endswith(b"\n"))
                except FileNotFoundError:
                    continue  # its lines stand in the next file by now
                except OSError as error:
                    raise _unreadable(path, error) from error
            last.seek(self._offset)
            for line in last:
                if not line.endswith(b"\n"):
                    return
                self._offset += len(line)
                yield line


def _unreadable(path: Path, error: OSError) -> NodeError:
    remedy = "Ask as the user that the node runs as, or as root."
    return NodeError(f"cannot read ({error.strerror})", path, remedy)
