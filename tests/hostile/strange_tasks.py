"""Envs that do to their worker what hostile text could make a verifier do, one a name.

A test puts this folder and an entry point for it on the path (:func:`strange_specs`); the worker
then loads it as it loads any package's task.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

GOOD = "good"


def burn_cpu() -> float:
    return float(len(str(9**9**9)))


def burn_memory() -> float:
    return float(len(bytearray(1 << 34)))


def sleep() -> float:
    time.sleep(3600)
    return 0.0


def doze() -> float:
    time.sleep(0.6)
    return 1.0


def recurse() -> float:
    return recurse()


def die() -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def leave() -> float:
    os._exit(0)


def chatter() -> float:
    print("x" * (1 << 20))
    print("x" * (1 << 20), file=sys.stderr)
    return 1.0


def overpay() -> float:
    return 7.0


def write() -> float:
    Path("swarm-node-was-here").write_text("written")
    return 1.0


def trip() -> float:
    raise ValueError("cannot read this")


DEEDS = {
    deed.__name__: deed
    for deed in (
        burn_cpu,
        burn_memory,
        sleep,
        doze,
        recurse,
        die,
        leave,
        chatter,
        overpay,
        write,
        trip,
    )
}


class Strange:
    """Scores an answer by doing what it names; any other answer is worth 1 when it is ``good``."""

    version = "1"
    evaluates_text = False

    def __init__(self, levels: list[Mapping[str, Any]]) -> None:
        self.levels = len(levels)

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        return {"question": f"{number} {surroundings()}"}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        return DEEDS[answer]() if answer in DEEDS else float(answer == GOOD)


def surroundings() -> dict[str, Any]:
    """What a verifier finds around it: environment, and open descriptors as device and inode."""
    descriptors = []
    for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with suppress(OSError):
            found = os.fstat(number)
            descriptors.append(f"{found.st_dev}:{found.st_ino}")
    return {"environment": sorted(os.environ), "descriptors": sorted(descriptors)}
