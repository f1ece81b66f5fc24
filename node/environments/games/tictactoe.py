"""Noughts and crosses against a player whose chance is seeded."""

from __future__ import annotations

import random
from typing import ClassVar

from node.environments.games.ranges import within

LINES = ("012", "345", "678", "036", "147", "258", "048", "246")
FREE = "."


def won(board: str, mark: str) -> bool:
    """Whether three of a mark stand in a line."""
    return any(all(board[int(n)] == mark for n in line) for line in LINES)


def placed(board: str, square: int, mark: str) -> str:
    """The board with a mark on a square."""
    return board[:square] + mark + board[square + 1 :]


class TicTacToe:
    """Shows nine squares by rows, ``x`` being the policy's; takes the number of one, 1 to 9.

    Begins with ``stones`` of each. The other player wins where it can, then hinders, else draws.
    Worth 1 for three in a line, a half for a full board, 0 for a loss or a square that is taken.
    """

    version: ClassVar[str] = "1"
    replayable: ClassVar[bool] = True

    def reset(self, seed: int, *, stones: int = 2) -> str:
        """A board on which nobody has won."""
        rng = random.Random(f"tictactoe/{seed}")
        while True:
            squares = rng.sample(range(9), 2 * within("stones", stones, 0, 3))
            marks = {n: "xo"[place % 2] for place, n in enumerate(squares)}
            self._board = "".join(marks.get(n, FREE) for n in range(9))
            if not won(self._board, "x") and not won(self._board, "o"):
                break
        self._seed, self._reward = seed, 0.0
        return f"Play {self._board}"

    def step(self, action: str) -> tuple[str, bool]:
        """Place an x, and have an o placed."""
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
        """What the game came to; nothing while it goes on."""
        return self._reward

    def _answer(self) -> int:
        free = [n for n, mark in enumerate(self._board) if mark == FREE]
        for mark in "ox":
            for n in free:
                if won(placed(self._board, n, mark), mark):
                    return n
        return random.Random(f"tictactoe/{self._seed}/{self._board}").choice(free)
