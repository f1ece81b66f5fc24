"""A process that does jobs: one JSON line in for each, JSON lines out on how it goes.

What a job cannot be done for, such as a key that this machine refuses, is told like the rest.

It ends at once when its standard input does, so nothing outlives the command that started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time

from experiments.jobs import Job
from node.errors import NodeError
from node.threads import choose

REPORT_SECONDS = 0.5


def main() -> None:
    """Do jobs until standard input ends."""
    choose(1)
    jobs: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(jobs,), daemon=True).start()
    while True:
        last = 0.0

        def report(done: int) -> None:
            nonlocal last
            if time.monotonic() - last > REPORT_SECONDS:
                last = time.monotonic()
                _tell({"rounds": done})

        try:
            Job.decode(jobs.get()).do(report)
        except NodeError as error:
            _tell({"refused": str(error)})
        else:
            _tell({"done": True})


def _read(jobs: queue.Queue[str]) -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


def _tell(event: dict[str, object]) -> None:
    print(json.dumps(event), flush=True)


if __name__ == "__main__":
    main()
