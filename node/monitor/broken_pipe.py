"""Output that stays usable when its reader hangs up."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Any

from node.errors import DiskFullError, NodeError
from node.storage.atomic_files import FULL

log = logging.getLogger(__name__)

GONE = (errno.EPIPE, errno.EIO)
"""Of a pipe that nobody reads any more, and of a terminal that was closed."""


_STDERR = 2


class LastingOutput(io.FileIO):
    """A descriptor that fails once at most: what is written afterwards is lost.

    Where its reader is gone nothing is raised, and the log says so.

    Attributes:
        drops: whether that holds for whatever else keeps it from being written.
    """

    drops = False

    def write(self, data: Any) -> int:
        """Write, or drop what nobody can read.

        Raises:
            NodeError: it cannot be written, as on a full disk.
        """
        try:
            return super().write(data)
        except OSError as error:
            # Python writes what is left once more when it exits, and a second failure is a trace
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.fileno())
            os.close(nowhere)
            if error.errno not in GONE and not self.drops:
                raise _write_error(error) from error
            self._tell(error)
        return len(data)

    def _tell(self, error: OSError) -> None:
        extra = None
        if self.fileno() == _STDERR:
            from node.monitor.logs import SAID

            extra = SAID  # to the log alone: standard error is in the middle of a write
        if error.errno in GONE:
            text = "nobody reads descriptor %d any more: what is shown is lost"
            log.info(text, self.fileno(), extra=extra)
        else:
            text = "descriptor %d cannot be written (%s): what is shown is lost"
            log.warning(text, self.fileno(), error.strerror, extra=extra)


def _write_error(error: OSError) -> NodeError:
    what = f"cannot write to standard output ({error.strerror})"
    if error.errno in FULL:
        return DiskFullError(what, None, "Free some space there, or send it to another place.")
    return NodeError(what, None, "Send it to another place.")


def last() -> None:
    """Let nothing that this process prints end it.

    A reader that is gone is no error, and a character that the encoding lacks is shown by its
    Python escape. Standard output that cannot be written raises a :class:`NodeError`, once.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            raw = LastingOutput(stream.fileno(), "w", closefd=False)
        except (AttributeError, OSError):
            continue  # closed from the start, or put in place by whoever called this process
        raw.drops = name == "stderr"  # there is no other place to say it
        stream.flush()
        setattr(
            sys,
            name,
            io.TextIOWrapper(
                io.BufferedWriter(raw),
                encoding=stream.encoding,
                errors="backslashreplace",
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            ),
        )


def drop_what_fails() -> None:
    """Lose what cannot be written from here on, for a node that has more to do than to show it."""
    if isinstance(raw := getattr(getattr(sys.stdout, "buffer", None), "raw", None), LastingOutput):
        raw.drops = True
