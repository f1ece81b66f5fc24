"""Environments that this package brings."""

from __future__ import annotations

from collections.abc import Mapping

from node.environments.environment import Environment
from node.environments.games.bandit import Bandit
from node.environments.games.calculator import Calculator
from node.environments.games.guess import Guess
from node.environments.games.maze import Maze
from node.environments.games.tictactoe import TicTacToe

SHIPPED: Mapping[str, type[Environment]] = {
    "bandit": Bandit,
    "calculator": Calculator,
    "guess": Guess,
    "maze": Maze,
    "tictactoe": TicTacToe,
}
