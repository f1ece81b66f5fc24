"""Where ``swarm-node`` starts: an interrupt ends it quietly from here on.

Nothing is imported above, as most of a start is imports, and Ctrl-C may come within them.
"""

from __future__ import annotations

import atexit
import signal
import sys
from importlib import import_module
from types import FrameType

INTERRUPTED = 130
"""Exit status of what Ctrl-C has ended, by the convention of shells."""


def run(program: str = "node.cli.program") -> None:
    """Run one command of a program and exit: with 0, 1 (it failed), 2 (what was asked for makes no
    sense) or 130 (it was interrupted).

    Args:
        program: the module whose ``main`` reads the command line.
    """
    # what Python does behind that would be interrupted with a trace
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        status = import_module(program).main(lambda: interrupt.came)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception:
        if not interrupt.came:
            raise
        status = INTERRUPTED
    sys.exit(status)


class Interrupt:
    """Ctrl-C as Python handles it, and whether it came: libraries make other errors of it."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.came = True
        signal.default_int_handler(number, frame)


if __name__ == "__main__":
    run()
