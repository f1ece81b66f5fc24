"""The clock of simulations and tests: it moves only by request."""

from __future__ import annotations

import asyncio
import heapq
import itertools

# Event loop turns for woken tasks before the clock advances: enough for a chain of awaits that
# never leaves the loop.
SETTLE_TURNS = 32


class VirtualClock:
    """A clock moved by :meth:`advance`; sleepers wake by time, then by order of sleep."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Advance time by ``seconds``, waking every sleeper due on the way."""
        target = self._now + seconds
        await self._settle()
        while self._sleepers and self._sleepers[0][0] <= target:
            due, _, woken = heapq.heappop(self._sleepers)
            self._now = max(self._now, due)
            if not woken.done():
                woken.set_result(None)
                await self._settle()
        self._now = target
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(SETTLE_TURNS):
            await asyncio.sleep(0)
