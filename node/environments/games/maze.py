"""A maze of which one cell is seen at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import ClassVar

from node.environments.games.ranges import within

SIDE = 9
WAYS = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
WALLED = 0.25
"""Chance of every cell that is not on the way to be closed."""

Cell = tuple[int, int]
"""Column and row, from 0."""


class Maze:
    """Tells where one is, where to go and which ways are open; takes n, e, s or w.

    Worth 1 at the goal; else up to a half, for the share of the way that one came nearer.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, far: int = 3, moves: int = 6) -> str:
        """Cells as many steps apart as ``far``, with one way at least that only comes nearer."""
        rng = random.Random(f"maze/{seed}")
        across = rng.randint(0, within("far", far, 1, SIDE // 2))
        self._here = rng.randrange(SIDE), rng.randrange(SIDE)
        self._goal = _beside(rng, self._here[0], across), _beside(rng, self._here[1], far - across)
        way = {self._here, *_way(rng, self._here, self._goal)}
        cells = ((column, row) for row in range(SIDE) for column in range(SIDE))
        self._closed = {cell for cell in cells if cell not in way and rng.random() < WALLED}
        self._far, self._left = far, within("moves", moves, 1, 32)
        return self._seen()

    def step(self, action: str) -> tuple[str, bool]:
        """Go; against a wall, or where the action is none, one stays."""
        self._left -= 1
        if action in WAYS and (there := self._next(action)):
            self._here = there
        return self._seen(), self._here == self._goal or not self._left

    def reward(self) -> float:
        """How near one came."""
        left = sum(abs(a - b) for a, b in zip(self._here, self._goal, strict=True))
        return 1.0 if not left else max(0.0, 0.5 * (1 - left / self._far))

    def _next(self, way: str) -> Cell | None:
        there = self._here[0] + WAYS[way][0], self._here[1] + WAYS[way][1]
        inside = all(0 <= each < SIDE for each in there)
        return there if inside and there not in self._closed else None

    def _seen(self) -> str:
        open_ = "".join(way for way in WAYS if self._next(way))
        (column, row), (to_column, to_row) = self._here, self._goal
        return f"At {column}{row} to {to_column}{to_row} open {open_}"


def _beside(rng: random.Random, place: int, far: int) -> int:
    return rng.choice([each for each in (place - far, place + far) if 0 <= each < SIDE])


def _way(rng: random.Random, here: Cell, goal: Cell) -> Iterator[Cell]:
    """Cells of a way that only comes nearer."""
    while here != goal:
        axis = rng.choice([n for n in (0, 1) if here[n] != goal[n]])
        nearer = here[axis] + (1 if here[axis] < goal[axis] else -1)
        here = (nearer, here[1]) if axis == 0 else (here[0], nearer)
        yield here
