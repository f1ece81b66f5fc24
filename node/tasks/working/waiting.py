"""Waiting from one time of the day to another."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from node.tasks.working.working import Working

WAITS = (5, 10, 30, 60)
DAY = 24 * 60
_TIME = re.compile("([0-9]|1[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class Wait:
    """Minutes since midnight: what time it is, and what it is to be."""

    now: int
    goal: int


class Waiting(Working[Wait]):
    """From ``7:40`` to ``9:15`` is ``8:40 9:10 9:15`` or any other way."""

    settings: ClassVar = {"minutes": range(20, DAY)}

    def begin(self, rng: random.Random, **settings: int) -> Wait:
        """As many fives apart as ``minutes`` has at most, and half as many at least."""
        fives = rng.randint(settings["minutes"] // 10, settings["minutes"] // 5)
        now = rng.randrange((DAY - 5 * fives) // 5) * 5
        return Wait(now, now + 5 * fives)

    def question(self, state: Wait) -> str:
        """The two times."""
        wait = f"Wait from {_told(state.now)} to {_told(state.goal)}"
        return f"{wait}. Every wait takes 5, 10, 30 or 60 minutes. Write down the time after each"

    def way(self, rng: random.Random, state: Wait) -> Iterator[str]:
        """One of the two longest waits that are not too long, a step."""
        now = state.now
        while now != state.goal:
            now += rng.choice([wait for wait in WAITS if now + wait <= state.goal][-2:])
            yield _told(now)

    def move(self, state: Wait, step: str) -> Wait | None:
        """A later time, one wait away."""
        found = _TIME.fullmatch(step)
        if not found:
            return None
        now = 60 * int(found[1]) + int(found[2])
        return replace(state, now=now) if now - state.now in WAITS else None

    def arrived(self, state: Wait) -> bool:
        """It is the time that it was to be."""
        return state.now == state.goal


def _told(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"
