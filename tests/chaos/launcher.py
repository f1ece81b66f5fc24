"""``swarm-node`` with a shifted clock and a pause before every round.

Usage: ``python -m tests.chaos.launcher CLOCK PAUSE join …``. ``CLOCK`` is a file with one float64:
the seconds by which this process's wall clock is ahead, which another process sets. The network's
process also starts through this module and uses the file. The pause frees the cores for others.
"""

from __future__ import annotations

import asyncio
import mmap
import struct
import sys
import time
from pathlib import Path
from typing import Any

OFFSET = struct.Struct("<d")
NETWORK = "swarm.transport.subprocess.child"


def shift_clock(path: Path) -> None:
    """Make ``time.time`` follow the file, before a library copies the function."""
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), OFFSET.size, prot=mmap.PROT_READ)
    really = time.time
    time.time = lambda: really() + OFFSET.unpack_from(view)[0]


def pause_rounds(seconds: float) -> None:
    from node.run.training_loop import TrainingLoop

    step = TrainingLoop.step

    def rested(self: TrainingLoop, **options: Any) -> Any:
        time.sleep(seconds)
        return step(self, **options)

    TrainingLoop.step = rested  # type: ignore[method-assign]


def main() -> None:
    """Run the network's process, or ``swarm-node``."""
    clock, pause, *sys.argv[1:] = sys.argv[1:]
    shift_clock(Path(clock))
    from swarm.transport.subprocess import child, link

    if sys.argv[1] == NETWORK:
        asyncio.run(child.main())
        return
    here = sys.executable, "-P", "-m", "tests.chaos.launcher"
    link.COMMAND = (*here, clock, pause, NETWORK)
    if sys.argv[1] == "join":
        pause_rounds(float(pause))
    from node.cli.main import run

    run()


if __name__ == "__main__":
    main()
