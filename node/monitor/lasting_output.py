"""Standard output and error that outlive whoever reads them."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from typing import Any

log = logging.getLogger(__name__)

GONE = (errno.EPIPE, errno.EIO)
"""Of a pipe that nobody reads any more, and of a terminal that was closed."""


class LastingOutput(io.FileIO):
    """A descriptor whose reader may go: what is written afterwards is lost, and the log says so."""

    def write(self, data: Any) -> int:
        """Write, or drop what nobody can read."""
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in GONE:
                raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)
        log.info("nobody reads descriptor %d any more: what is shown is lost", self.fileno())
        return len(data)


def last() -> None:
    """Let nothing that this process prints end it.

    A reader that is gone is no error, and a character that the encoding lacks is shown by its
    Python escape.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        try:
            raw = LastingOutput(stream.fileno(), "w", closefd=False)
        except (AttributeError, OSError):
            continue  # closed from the start, or put in place by whoever called this process
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
