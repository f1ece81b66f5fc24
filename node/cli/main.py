"""Entry point of ``swarm-node``, which handles Ctrl-C before the slow imports."""

from __future__ import annotations

import atexit
import signal
import sys
from importlib import import_module
from types import FrameType

INTERRUPTED = 130  # exit status after Ctrl-C, by the convention of shells


def run(program: str = "node.cli.program") -> None:
    """Run one command and exit with 0, 1 (failure), 2 (misuse) or 130 (interrupted)."""
    # an interrupt of what Python does after that would print a trace
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_DFL)
    interrupt = Interrupt()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        status = import_module(program).main(lambda: interrupt.came)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception:  # a library may turn Ctrl-C into an error of its own
        if not interrupt.came:
            raise
        status = INTERRUPTED
    sys.exit(status)


class Interrupt:
    """Ctrl-C as Python handles it, and whether it came: libraries change its error."""

    def __init__(self) -> None:
        self.came = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.came = True
        signal.default_int_handler(number, frame)


if __name__ == "__main__":
    run()
