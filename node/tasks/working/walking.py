"""Walking on a board, one square at a time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from node.tasks.working.working import Working

COLUMNS, ROWS = "abcdefghijklmnopqrst", "123456789"
Square = tuple[int, int]
"""Column and row, from 0."""


@dataclass(frozen=True, slots=True)
class Walk:
    """Where one stands, where one goes, and what is in the way."""

    here: Square
    goal: Square
    holes: frozenset[Square]


class Walking(Working[Walk]):
    """From ``b2`` to ``d3`` is ``c2 c3 d3`` or any other way without a hole."""

    settings: ClassVar = {"steps": range(2, 25), "holes": range(9)}

    def begin(self, rng: random.Random, **settings: int) -> Walk:
        """Two squares that many steps apart, and holes beside one way between them."""
        steps = settings["steps"]
        across = rng.randint(max(1, steps - len(ROWS) + 1), min(steps, len(COLUMNS)) - 1)
        start = _place(rng, across, len(COLUMNS)), _place(rng, steps - across, len(ROWS))
        goal = (start[0][1], start[1][1])
        walk = Walk((start[0][0], start[1][0]), goal, frozenset())
        free = {walk.here, *map(_square, self.way(rng, walk))}
        between = [
            (column, row)
            for column in range(*_between(walk.here[0], goal[0]))
            for row in range(*_between(walk.here[1], goal[1]))
            if (column, row) not in free
        ]
        holes = rng.sample(between, min(settings["holes"], len(between)))
        return replace(walk, holes=frozenset(holes))

    def question(self, state: Walk) -> str:
        """The two squares and the holes."""
        holes = " ".join(map(_name, sorted(state.holes))) or "none"
        where = f"Walk from {_name(state.here)} to {_name(state.goal)}, holes {holes}"
        return f"{where}. Write down every square you step on, such as a1 a2 b2"

    def way(self, rng: random.Random, state: Walk) -> Iterator[str]:
        """Towards the goal only, on squares from which it can be reached so."""
        while not self.arrived(state):
            ahead = [s for s in _ahead(state) if _open(replace(state, here=s))]
            state = replace(state, here=rng.choice(ahead))
            yield _name(state.here)

    def move(self, state: Walk, step: str) -> Walk | None:
        """A neighbouring square that is none of the holes."""
        if len(step) != 2 or step[0] not in COLUMNS or step[1] not in ROWS:
            return None
        (column, row), (to_column, to_row) = state.here, _square(step)
        far = abs(column - to_column) + abs(row - to_row)
        if far != 1 or (to_column, to_row) in state.holes:
            return None
        return replace(state, here=(to_column, to_row))

    def arrived(self, state: Walk) -> bool:
        """One stands on the goal."""
        return state.here == state.goal


def _place(rng: random.Random, steps: int, room: int) -> tuple[int, int]:
    """Where a line of ``steps`` begins and ends, in either direction."""
    low = rng.randrange(room - steps)
    return (low, low + steps) if rng.random() < 0.5 else (low + steps, low)


def _between(first: int, last: int) -> tuple[int, int]:
    return min(first, last), max(first, last) + 1


def _ahead(walk: Walk) -> list[Square]:
    """The squares one step nearer to the goal."""
    (column, row), (to_column, to_row) = walk.here, walk.goal
    found = []
    if column != to_column:
        found.append((column + (1 if to_column > column else -1), row))
    if row != to_row:
        found.append((column, row + (1 if to_row > row else -1)))
    return found


def _open(walk: Walk) -> bool:
    """Whether the goal can be reached, by steps towards it only."""
    front = {walk.here} - walk.holes
    while front and walk.goal not in front:
        front = {s for here in front for s in _ahead(replace(walk, here=here))} - walk.holes
    return bool(front)


def _name(square: Square) -> str:
    return f"{COLUMNS[square[0]]}{ROWS[square[1]]}"


def _square(name: str) -> Square:
    return COLUMNS.index(name[0]), ROWS.index(name[1])
