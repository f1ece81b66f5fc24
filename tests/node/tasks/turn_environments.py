"""Environments that hang, wait, meet, break or burn on command, for a worker.

Those that hang or wait do so until the file ``gate`` exists.
"""

import asyncio
import os
import random
import time
from pathlib import Path
from typing import ClassVar


class Plain:
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, gate: str = "") -> str:
        self.turns, self.gate = 0, Path(gate)
        return f"Say something {seed}:"

    def step(self, action: str) -> tuple[str, bool]:
        self.turns += 1
        return f"{self.turns} {action}", action == "stop"

    def reward(self) -> float:
        return 0.5


class Hanging(Plain):
    def step(self, action: str) -> tuple[str, bool]:
        while action == "hang" and not self.gate.exists():
            time.sleep(0.005)
        return super().step(action)


class Waiting(Plain):
    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        while action == "wait" and not self.gate.exists():
            await asyncio.sleep(0.005)
        return super().step(action)


class Blocking(Plain):
    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        await asyncio.sleep(0)
        while action == "hang" and not self.gate.exists():
            time.sleep(0.005)
        return super().step(action)


class Meeting(Plain):
    """Takes a turn only together with another one; a single turn waits."""

    alone: ClassVar[asyncio.Future[None] | None] = None

    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        other, Meeting.alone = Meeting.alone, None
        if other:
            other.set_result(None)
        else:
            Meeting.alone = asyncio.get_running_loop().create_future()
            await Meeting.alone
        return super().step(action)


class Breaking(Plain):
    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        await asyncio.sleep(0.01)
        if action == "break":
            os._exit(3)
        return super().step(action)


class Burning(Plain):
    """Uses up its CPU time, all at once or in small parts."""

    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        while action == "burn":
            pass
        while action == "glow":
            sum(range(100_000))
            await asyncio.sleep(0)
        return super().step(action)


class Passing(Waiting):
    """Returns observations that cannot be reproduced."""

    replayable: ClassVar[bool] = False

    async def reset(self, seed: int, *, gate: str = "") -> str:  # type: ignore[override]
        self.name = random.SystemRandom().random()
        return super().reset(seed, gate=gate)

    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        observation, over = await super().step(action)
        return f"{observation} {self.name}", over


class Dice(Plain):
    """Draws from the shared random generator, and waits between draws."""

    async def step(self, action: str) -> tuple[str, bool]:  # type: ignore[override]
        first = random.random()
        await asyncio.sleep(0.001)
        self.turns += 1
        return f"{first} {random.random()}", self.turns == 4
