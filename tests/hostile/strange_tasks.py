"""Envs that do to their worker what hostile text could do, one action per name.

A test declares an entry point for this module, and the worker loads it like any package's task.
"""

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.hostile.deeds import GOOD, Deeds


def recurse() -> float:
    return recurse()


def chatter() -> None:
    print("x" * (1 << 20))
    print("x" * (1 << 20), file=sys.stderr)


DEEDS: dict[str, Callable[[], object]] = {
    "burn_cpu": lambda: str(9**9**9),
    "burn_in_c": lambda: sum(range(1 << 60)),  # This never returns to Python.
    "burn_memory": lambda: bytearray(1 << 34),
    "sleep": lambda: time.sleep(3600),
    "doze": lambda: time.sleep(0.6),
    "recurse": recurse,
    "die": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "leave": lambda: os._exit(0),
    "exit": sys.exit,
    "crash": lambda: ctypes.string_at(0),
    "chatter": chatter,
    "overpay": lambda: 7.0,
    "write": lambda: Path("swarm-node-was-here").write_text("written"),
    "trip": lambda: int("what it cannot read"),
}


class Strange(Deeds):
    """Runs the action that an answer names; reward 1 unless it returns a float."""

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        return {"question": f"{number} {surroundings()}"}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        if answer not in DEEDS:
            return float(answer == GOOD)
        result = DEEDS[answer]()
        return result if isinstance(result, float) else 1.0


class StrangeOnce(Strange):
    """The same env, declared as evaluating text."""

    evaluates_text = True


def surroundings() -> dict[str, Any]:
    """Return the names in the environment, and open descriptors as device and inode."""
    descriptors = []
    for number in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0]):
        with suppress(OSError):
            found = os.fstat(number)
            descriptors.append(f"{found.st_dev}:{found.st_ino}")
    return {"environment": sorted(os.environ), "descriptors": sorted(descriptors)}
