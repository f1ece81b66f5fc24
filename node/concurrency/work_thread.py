"""A thread that does one thing after the other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


class WorkThread:
    """Unlike an executor's, it does not keep the process from ending.

    It lives as long as its owner wants it: memory that a thread has returned is at hand for the
    next allocation of that thread, and new to any other. An update on a new thread each time took
    a sixth longer.
    """

    def __init__(self, name: str) -> None:
        self._work: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        """Do ``work`` after all that was submitted before."""
        result: Future[T] = Future()
        self._work.put((work, result))
        return result

    def close(self) -> None:
        """End once everything is done; nobody waits for it."""
        self._work.put(None)

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            work, result = item
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
                result.set_exception(error)
