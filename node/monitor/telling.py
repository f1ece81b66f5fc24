"""What a node says to whoever started it, which stands in its log as well."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from node.monitor.logs import SAID, STDERR, STDOUT, goes_to
from node.monitor.printable import say

log = logging.getLogger(__name__)


def teller(path: Path, *, err: bool = False) -> Callable[[str], None]:
    """What prints a line and logs it with its time.

    Args:
        path: the log; where the output is that very file the line is logged alone.
        err: print on standard error.
    """

    def tell(line: str) -> None:
        log.info("%s", line, extra=SAID)
        if not goes_to(STDERR if err else STDOUT, path):
            say(line, err=err)

    return tell
