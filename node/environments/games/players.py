"""Players of the games who see what a policy sees, and no more: how well a game can be played."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from node.environments.games.maze import WAYS
from node.environments.games.tictactoe import FREE, placed, won

History = Sequence[str]
"""The first observation, an action, an observation, and so on; the last is an observation."""


@dataclass(frozen=True, slots=True)
class Player:
    """How a game is played.

    Attributes:
        good: a good action; among several the chance given draws one.
        any: one of an action's form, drawn without looking for what is good.
    """

    good: Callable[[History, random.Random], str]
    any: Callable[[History, random.Random], str]


def _range(seen: History) -> tuple[int, int]:
    low, high = map(int, re.findall(r"\d+", seen[0]))
    for guess, told in zip(seen[1::2], seen[2::2], strict=True):
        if told == "higher":
            low = max(low, int(guess) + 1)
        elif told == "lower":
            high = min(high, int(guess) - 1)
    return low, high


def _halving(seen: History, rng: random.Random) -> str:
    low, high = _range(seen)
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


def _any_way(seen: History, rng: random.Random) -> str:
    return rng.choice(list(WAYS))


def _free(seen: History) -> tuple[str, list[int]]:
    board = seen[-1].removeprefix("Play ")
    return board, [n for n, mark in enumerate(board) if mark == FREE]


def _winning(seen: History, rng: random.Random) -> str:
    board, free = _free(seen)
    for mark in "xo":
        for n in free:
            if won(placed(board, n, mark), mark):
                return str(n + 1)
    return str((4 if 4 in free else rng.choice(free)) + 1)


def _any_square(seen: History, rng: random.Random) -> str:
    return str(rng.randint(1, 9))


def _calling(seen: History, rng: random.Random) -> str:
    return f"calc {seen[0].removeprefix('Compute ')}" if len(seen) == 1 else seen[-1]


def _any_answer(seen: History, rng: random.Random) -> str:
    return str(rng.randrange(10 ** rng.randint(1, 4)))


def _staying(seen: History, rng: random.Random) -> str:
    arms = seen[0].removeprefix("Pull ").split()
    paid = dict.fromkeys(arms, 1.0)
    for arm, told in zip(seen[1::2], seen[2::2], strict=True):
        if arm in paid:
            paid[arm] += 1.0 if told == "paid" else -0.7
    return max(arms, key=paid.__getitem__)


def _any_arm(seen: History, rng: random.Random) -> str:
    return rng.choice(seen[0].removeprefix("Pull ").split())


PLAYERS: Mapping[str, Player] = {
    "guess": Player(_halving, _any_number),
    "maze": Player(_nearer, _any_way),
    "tictactoe": Player(_winning, _any_square),
    "calculator": Player(_calling, _any_answer),
    "bandit": Player(_staying, _any_arm),
}
