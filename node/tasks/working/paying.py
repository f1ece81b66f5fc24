"""Paying an amount, one coin at a time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from node.tasks.working.working import NUMBER, Working

_STEP = re.compile(rf"{NUMBER}-{NUMBER}={NUMBER}")
COINS = (2, 3, 5, 8, 10, 15, 20, 25, 50)
"""Those beside 1 of which a question has three."""


@dataclass(frozen=True, slots=True)
class Bill:
    """What is left to pay, and the coins that there are, the smallest first."""

    left: int
    coins: tuple[int, ...]


class Paying(Working[Bill]):
    """With coins of 1 2 5 20, ``27`` becomes ``27-20=7 7-5=2 2-2=0``; any of them will do."""

    settings: ClassVar = {"most": range(24, 2000)}

    def begin(self, rng: random.Random, **settings: int) -> Bill:
        """From half of ``most`` up to it, in coins of four sizes, of which one is 1."""
        most = settings["most"]
        coins = sorted(rng.sample([coin for coin in COINS if coin < most], 3))
        return Bill(rng.randint(most // 2, most), (1, *coins))

    def question(self, state: Bill) -> str:
        """The amount and the coins."""
        coins = " ".join(map(str, state.coins))
        return f"Pay {state.left} with coins of {coins}, one at a time. Steps are written 7-5=2"

    def way(self, rng: random.Random, state: Bill) -> Iterator[str]:
        """The largest coin that fits, or with a third of its chance the one below, a step."""
        left = state.left
        while left:
            fits = [coin for coin in state.coins if coin <= left]
            coin = rng.choice([*3 * fits[-1:], *fits[-2:-1]])
            yield f"{left}-{coin}={left - coin}"
            left -= coin

    def move(self, state: Bill, step: str) -> Bill | None:
        """What is left after a coin."""
        found = _STEP.fullmatch(step)
        if not found:
            return None
        before, coin, after = map(int, found.groups())
        right = before == state.left and coin in state.coins and after == before - coin
        return replace(state, left=after) if right and after >= 0 else None

    def arrived(self, state: Bill) -> bool:
        """Nothing is left to pay."""
        return state.left == 0
