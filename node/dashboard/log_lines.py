"""The end of a node's log, as far as a page shows it."""

from __future__ import annotations

import os
from pathlib import Path

from node.errors import NodeError
from node.monitor.printable import printable

MOST_BYTES = 256 << 10
MOST_LINES = 1000


def last_lines(path: Path, count: int) -> list[str]:
    """The last whole lines of a log, of at most a quarter of a MiB; none where there is no log.

    Raises:
        NodeError: it may not be read.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = max(0, size - MOST_BYTES)
            file.seek(begin)
            lines = file.read(MOST_BYTES).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        remedy = "Ask as the user that the node runs as, or as root."
        raise NodeError(f"cannot read the log ({error.strerror})", path, remedy) from error
    whole = lines[1:] if begin else lines
    return [printable(line.decode(errors="replace")) for line in whole[-count:]]
