"""The generators that libraries share, one episode's at a time."""

from __future__ import annotations

import importlib
import random
import sys
from types import ModuleType
from typing import Any


class Chance:
    """The generators that libraries share, as one episode has left them.

    Several episodes go on side by side in a process, and some libraries' games draw from
    ``random`` or numpy at every step. Inside of it an episode draws; another one may draw whenever
    this one waits.
    """

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._seed = seed
        self._numpy: Any = None

    def __enter__(self) -> None:
        """Let the generators go on as this episode left them."""
        random.setstate(self._python)
        if numpy := numpy_random():
            if self._numpy is None:
                numpy.seed(self._seed >> 31)
            else:
                numpy.set_state(self._numpy)

    def __exit__(self, *exception: object) -> None:
        """Remember how far they have come."""
        self._python = random.getstate()
        if numpy := numpy_random():
            self._numpy = numpy.get_state()


def numpy_random() -> ModuleType | None:
    """numpy's, where this process has numpy.

    numpy itself loads it when it is first drawn from, which is too late to seed it.
    """
    return importlib.import_module("numpy.random") if "numpy" in sys.modules else None
