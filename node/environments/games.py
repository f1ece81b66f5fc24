"""Built-in games."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Iterator, Mapping
from typing import ClassVar

from node.environments.environment import Environment


def within(name: str, value: int, least: int, most: int) -> int:
    """Return the value; raises ``ValueError`` if it is out of range."""
    if not least <= value <= most:
        raise ValueError(f"{name} = {value}: use {least} to {most}")
    return value


class _Game:
    """Declarations of all games here; a changed one raises its own ``version``."""

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True
    hidden: ClassVar[bool] = True


SIDE = 9
WAYS = {"n": (0, -1), "e": (1, 0), "s": (0, 1), "w": (-1, 0)}
WALLED = 0.25  # probability that a cell off the path is closed

Cell = tuple[int, int]  # column and row, from 0


class Maze(_Game):
    """A maze that reports position, goal and open ways; actions are n, e, s or w.

    The reward is 1 at the goal, otherwise up to 0.5 for the fraction of the distance covered.
    """

    def reset(self, seed: int, *, far: int = 3, moves: int = 6) -> str:
        """Place the goal ``far`` steps away, with at least one direct path."""
        rng = random.Random(f"maze/{seed}")
        width = rng.randint(0, within("far", far, 1, SIDE // 2))
        self._here = rng.randrange(SIDE), rng.randrange(SIDE)
        self._goal = _beside(rng, self._here[0], width), _beside(rng, self._here[1], far - width)
        path = {self._here, *_way(rng, self._here, self._goal)}
        cells = ((column, row) for row in range(SIDE) for column in range(SIDE))
        self._closed = {cell for cell in cells if cell not in path and rng.random() < WALLED}
        self._far, self._left = far, within("moves", moves, 1, 32)
        return self._seen()

    def step(self, action: str) -> tuple[str, bool]:
        """Move; a closed way or an invalid action changes nothing."""
        self._left -= 1
        if action in WAYS and (cell := self._next(action)):
            self._here = cell
        return self._seen(), self._here == self._goal or not self._left

    def reward(self) -> float:
        distance = sum(abs(a - b) for a, b in zip(self._here, self._goal, strict=True))
        return 1.0 if not distance else max(0.0, 0.5 * (1 - distance / self._far))

    def _next(self, direction: str) -> Cell | None:
        cell = self._here[0] + WAYS[direction][0], self._here[1] + WAYS[direction][1]
        is_inside = all(0 <= coord < SIDE for coord in cell)
        return cell if is_inside and cell not in self._closed else None

    def _seen(self) -> str:
        ways = "".join(way for way in WAYS if self._next(way))
        (column, row), (to_column, to_row) = self._here, self._goal
        return f"At {column}{row} to {to_column}{to_row} open {ways}"


def _beside(rng: random.Random, position: int, distance: int) -> int:
    return rng.choice([x for x in (position - distance, position + distance) if 0 <= x < SIDE])


def _way(rng: random.Random, cell: Cell, goal: Cell) -> Iterator[Cell]:
    while cell != goal:
        axis = rng.choice([n for n in (0, 1) if cell[n] != goal[n]])
        nearer = cell[axis] + (1 if cell[axis] < goal[axis] else -1)
        cell = (nearer, cell[1]) if axis == 0 else (cell[0], nearer)
        yield cell


LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
FREE = "."


def won(board: str, mark: str) -> bool:
    return any(all(board[int(n)] == mark for n in line) for line in LINES)


def placed(board: str, square: int, mark: str) -> str:
    return board[:square] + mark + board[square + 1 :]


class TicTacToe(_Game):
    """Shows nine squares by rows; the policy is ``x`` and names a square, 1 to 9.

    It begins with ``stones`` of each. The opponent wins if it can, else blocks, else moves at
    random. The reward is 1 for a win, 0.5 for a full board, 0 for a loss or an occupied square.
    """

    def reset(self, seed: int, *, stones: int = 2) -> str:
        rng = random.Random(f"tictactoe/{seed}")
        while True:
            squares = rng.sample(range(9), 2 * within("stones", stones, 0, 3))
            marks = {n: "xo"[i % 2] for i, n in enumerate(squares)}
            self._board = "".join(marks.get(n, FREE) for n in range(9))
            if not won(self._board, "x") and not won(self._board, "o"):
                break
        self._seed, self._reward = seed, 0.0
        return f"Play {self._board}"

    def step(self, action: str) -> tuple[str, bool]:
        square = "123456789".find(action) if len(action) == 1 else -1
        if square < 0 or self._board[square] != FREE:
            self._reward = 0.0
            return "not free", True
        self._board = placed(self._board, square, "x")
        if won(self._board, "x"):
            self._reward = 1.0
            return self._board, True
        if FREE in self._board:
            self._board = placed(self._board, self._answer(), "o")
            if won(self._board, "o"):
                return self._board, True
        if FREE not in self._board:
            self._reward = 0.5
        return self._board, FREE not in self._board

    def reward(self) -> float:
        return self._reward

    def _answer(self) -> int:
        free = [n for n, mark in enumerate(self._board) if mark == FREE]
        for mark in "ox":
            for n in free:
                if won(placed(self._board, n, mark), mark):
                    return n
        return random.Random(f"tictactoe/{self._seed}/{self._board}").choice(free)


CALL = re.compile(r"calc (0|[1-9][0-9]{0,5})([-+*])(0|[1-9][0-9]{0,5})")
OPERATORS = "+-*"


def computed(first: int, operator: str, second: int) -> int:
    return {"+": first + second, "-": first - second, "*": first * second}[operator]


class Calculator(_Game):
    """``calc 12*34`` returns its result; any other text is the final answer.

    The reward is 1 for the right answer within ``calls`` calls, otherwise 0.
    """

    hidden: ClassVar[bool] = False

    def reset(self, seed: int, *, digits: int = 2, calls: int = 3) -> str:
        """Return two numbers of ``digits`` digits each and an operator."""
        rng = random.Random(f"calculator/{seed}")
        within("digits", digits, 1, 5)
        first, second = (rng.randrange(10 ** (digits - 1), 10**digits) for _ in range(2))
        operator = rng.choice(OPERATORS)
        self._right = str(computed(first, operator, second))
        self._left = within("calls", calls, 1, 16)
        self._answered = ""
        return f"Compute {first}{operator}{second}"

    def step(self, action: str) -> tuple[str, bool]:
        call = CALL.fullmatch(action)
        if not call:
            self._answered = action
            return "", True
        self._left -= 1
        first, operator, second = call.groups()
        return str(computed(int(first), operator, int(second))), not self._left

    def reward(self) -> float:
        return float(self._answered == self._right)


NUMBER = re.compile(r"[0-9]{1,4}")
HIGHEST = 900  # of a range's lowest number


class Guess(_Game):
    """Answers ``higher`` or ``lower``; reward 1 if found within ``tries``, else 0."""

    def reset(self, seed: int, *, most: int = 8, tries: int = 4) -> str:
        """Return a range of ``most`` numbers, independent of the hidden one."""
        rng = random.Random(f"guess/{seed}")
        low = rng.randint(1, HIGHEST)
        self._hidden = rng.randrange(low, low + within("most", most, 2, 99))
        self._left = within("tries", tries, 1, 16)
        self._found = False
        return f"Guess from {low} to {low + most - 1}"

    def step(self, action: str) -> tuple[str, bool]:
        """Compare a guess; text other than up to four ASCII digits costs a try, too."""
        self._left -= 1
        if not NUMBER.fullmatch(action):
            return "no number", not self._left
        guess = int(action)
        self._found = guess == self._hidden
        reply = "higher" if guess < self._hidden else "lower"
        return reply, self._found or not self._left

    def reward(self) -> float:
        return float(self._found)


GOOD, BAD = 0.9, 0.15  # payout probability of the good arm and of each other one


class Bandit(_Game):
    """Arms named by letters; the reward is the fraction of pulls that paid."""

    def reset(self, seed: int, *, arms: int = 2, pulls: int = 6) -> str:
        """Return the arms in random order; their names do not reveal the good one."""
        self._rng = random.Random(f"bandit/{seed}")
        self._arms = "".join(self._rng.sample(string.ascii_lowercase, within("arms", arms, 2, 9)))
        self._good = self._rng.choice(self._arms)
        self._pulls = self._left = within("pulls", pulls, 1, 16)
        self._paid = 0
        return f"Pull {' '.join(self._arms)}"

    def step(self, action: str) -> tuple[str, bool]:
        self._left -= 1
        roll = self._rng.random()
        is_arm = len(action) == 1 and action in self._arms
        paid = is_arm and roll < (GOOD if action == self._good else BAD)
        self._paid += paid
        return "paid" if paid else "nothing", not self._left

    def reward(self) -> float:
        return self._paid / self._pulls


SHIPPED: Mapping[str, type[Environment]] = {
    "bandit": Bandit,
    "calculator": Calculator,
    "guess": Guess,
    "maze": Maze,
    "tictactoe": TicTacToe,
}
