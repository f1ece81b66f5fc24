"""A question of arithmetic, and a calculator to answer it with."""

from __future__ import annotations

import random
import re
from typing import ClassVar

from node.environments.games.ranges import within

CALL = re.compile(r"calc (0|[1-9][0-9]{0,5})([-+*])(0|[1-9][0-9]{0,5})")
OPERATORS = "+-*"


def computed(first: int, operator: str, second: int) -> int:
    """What a calculator shows."""
    return {"+": first + second, "-": first - second, "*": first * second}[operator]


class Calculator:
    """``calc 12*34`` is answered with its result; whatever else is written is the final answer.

    Worth 1 for the right answer, 0 for another one, and for none within ``calls`` calls.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, digits: int = 2, calls: int = 3) -> str:
        """Two numbers of as many ``digits``, and what to do with them."""
        rng = random.Random(f"calculator/{seed}")
        within("digits", digits, 1, 5)
        first, second = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
        operator = rng.choice(OPERATORS)
        self._right = str(computed(first, operator, second))
        self._left = within("calls", calls, 1, 16)
        self._answered = ""
        return f"Compute {first}{operator}{second}"

    def step(self, action: str) -> tuple[str, bool]:
        """Calculate, or take the answer."""
        call = CALL.fullmatch(action)
        if not call:
            self._answered = action
            return "", True
        self._left -= 1
        first, operator, second = call.groups()
        return str(computed(int(first), operator, int(second))), not self._left

    def reward(self) -> float:
        """Whether the answer is right."""
        return float(self._answered == self._right)
