"""A base class for objects whose parts open together and close in reverse order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import ExitStack
from typing import Any, Self


class Opened(ABC):
    """A context manager that opens its parts; a failed start closes open parts."""

    _stack: ExitStack

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Open the parts and register the closing of each with ``stack``."""
