"""Reference players of the built-in games, which see only what a policy sees."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.environments.games import FREE, WAYS, placed, won

History = Sequence[str]
"""Observations and actions in turn; the first and the last are observations."""


@dataclass(frozen=True, slots=True)
class GamePlayer:
    """A way to play: a ``good`` action, or ``any`` random action of a valid form."""

    good: Callable[[History, random.Random], str]
    any: Callable[[History, random.Random], str]


def _halving(seen: History, rng: random.Random) -> str:
    low, high = map(int, re.findall(r"\d+", seen[0]))
    for guess, reply in zip(seen[1::2], seen[2::2], strict=True):
        if reply == "higher":
            low = max(low, int(guess) + 1)
        elif reply == "lower":
            high = min(high, int(guess) - 1)
    return str((low + high) // 2)


def _any_number(seen: History, rng: random.Random) -> str:
    low, high = map(int, re.findall(r"\d+", seen[0]))
    return str(rng.randint(low, high))


def _nearer(seen: History, rng: random.Random) -> str:
    _, here, _, goal, _, *ways = seen[-1].split(" ")
    open_ = "".join(ways)
    ahead = [
        way
        for way, step in WAYS.items()
        if way in open_
        and any((int(g) - int(h)) * s > 0 for h, g, s in zip(here, goal, step, strict=True))
    ]
    return rng.choice(ahead or list(open_) or ["n"])


def _winning(seen: History, rng: random.Random) -> str:
    board = seen[-1].removeprefix("Play ")
    free = [n for n, mark in enumerate(board) if mark == FREE]
    for mark in "xo":
        for n in free:
            if won(placed(board, n, mark), mark):
                return str(n + 1)
    return str((4 if 4 in free else rng.choice(free)) + 1)


def _arms(seen: History) -> list[str]:
    return seen[0].removeprefix("Pull ").split()


def _staying(seen: History, rng: random.Random) -> str:
    arms = _arms(seen)
    paid = dict.fromkeys(arms, 1.0)
    for arm, reply in zip(seen[1::2], seen[2::2], strict=True):
        if arm in paid:
            paid[arm] += 1.0 if reply == "paid" else -0.7
    return max(arms, key=paid.__getitem__)


PLAYERS: Mapping[str, GamePlayer] = {
    "guess": GamePlayer(_halving, _any_number),
    "maze": GamePlayer(_nearer, lambda _, rng: rng.choice(list(WAYS))),
    "tictactoe": GamePlayer(_winning, lambda _, rng: str(rng.randint(1, 9))),
    "calculator": GamePlayer(
        lambda seen, _: f"calc {seen[0].removeprefix('Compute ')}" if len(seen) == 1 else seen[-1],
        lambda _, rng: str(rng.randrange(10 ** rng.randint(1, 4))),
    ),
    "bandit": GamePlayer(_staying, lambda seen, rng: rng.choice(_arms(seen))),
}
