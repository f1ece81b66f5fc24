"""Clocks passed as arguments, so that tests and simulations can have their own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """The time functions that the swarm needs."""

    def time(self) -> float:
        """Return Unix time, seconds."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start; it never decreases."""

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``; immediately if not positive."""


class SystemClock:
    """The machine's clock."""

    def time(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds))


async def within(clock: Clock, seconds: float, work: Awaitable[T]) -> T:
    """Await ``work`` for at most ``seconds``, then cancel it and raise TimeoutError."""
    task = asyncio.ensure_future(work)
    timer = asyncio.ensure_future(clock.sleep(seconds))
    try:
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise TimeoutError(f"not done within {seconds:g} s")
    finally:
        for future in (task, timer):
            future.cancel()
