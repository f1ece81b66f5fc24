"""How much of the processor the network may take from the learner, whatever strangers do.

Under a flood the daemon and its process would use as much as the learner. Niceness is no remedy:
where more processes than cores want to run, a nice daemon answers nobody any more. So both run like
any other while they are within an allowance, and stand still for moments while they are beyond it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import psutil

from swarm.common.counters import Counters

SHARE = 0.05
"""Of all cores that this process may run on."""

LEAST = 0.2
"""Cores, on however small a machine. With half of it a flood of streams left one request in ten
unanswered."""

SAVED_SECONDS = 2.0
"""Of processor time that may be saved up, for a start and other bursts."""

LOOK_SECONDS = 0.1
WORK_SECONDS = 0.005
LONGEST_PAUSE = 0.15
"""Seconds: a request is answered over a few pauses and has about a second."""


class Allowance:
    """Processor time that comes in steadily and may be saved up to a bound: pure.

    Args:
        rate: seconds of processor time a second.
        now: monotonic time, seconds.
    """

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._left = SAVED_SECONDS
        self._used = 0.0
        self._at = now

    def pause(self, used: float, now: float) -> float:
        """Seconds to stand still, where ``used`` seconds of processor have been used in all."""
        self._left += self._rate * (now - self._at) - (used - self._used)
        self._left = min(self._left, SAVED_SECONDS)
        self._used, self._at = used, now
        return min(LONGEST_PAUSE, max(0.0, -self._left / self._rate))


class Meter:
    """Processor time of this process from now on, and of its daemon, one after the other.

    Args:
        daemon: process id of the present one; None while there is none.
    """

    def __init__(self, daemon: Callable[[], int | None]) -> None:
        self._find = daemon
        self._begun = time.process_time()
        self._earlier = self._present = 0.0
        self.daemon: psutil.Process | None = None

    def read(self) -> float:
        """Seconds so far."""
        pid = self._find()
        if pid != (self.daemon.pid if self.daemon else None):
            self._earlier, self._present = self._earlier + self._present, 0.0
            self.daemon = None
        with suppress(psutil.NoSuchProcess):
            if pid is not None:
                self.daemon = self.daemon or psutil.Process(pid)
                times = self.daemon.cpu_times()
                self._present = float(times.user + times.system)
        return time.process_time() - self._begun + self._earlier + self._present


def cores() -> int:
    """How many this process may run on."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


async def be_thrifty(
    daemon: Callable[[], int | None],
    counters: Counters,
    stand_still: Callable[[float], None] = time.sleep,
) -> None:
    """Keep this process and its daemon within their share of the machine, until cancelled.

    On Linux only: elsewhere nothing ends a daemon that stands still when its parent is killed.

    Args:
        daemon: its process id; None while there is none.
        stand_still: has this process stand still for so many seconds.
    """
    if sys.platform != "linux":
        return
    allowance = Allowance(max(LEAST, SHARE * cores()), time.monotonic())
    meter = Meter(daemon)
    look = LOOK_SECONDS
    while True:
        await asyncio.sleep(look)
        pause = allowance.pause(meter.read(), time.monotonic())
        look = WORK_SECONDS if pause else LOOK_SECONDS
        if pause:
            counters.add("network_paused_seconds", pause)
            with standing_still(meter.daemon):
                stand_still(pause)


@contextmanager
def standing_still(process: psutil.Process | None) -> Iterator[None]:
    """Stop a process, if there is one, and let it go on."""
    with suppress(psutil.NoSuchProcess):
        if process:
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):
            if process:
                process.send_signal(signal.SIGCONT)
