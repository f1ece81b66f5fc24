"""Whoever plays a game of TextArena against the policy: draws lots for every move."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from node.environments.libraries.textarena_games import TOLD

MOST_TRIES = 4096
"""After so many moves that the game does not take it gives up."""
LISTED = re.compile(r"(?:Available|Valid) moves?:(.*)", re.IGNORECASE)
BRACKETED = re.compile(r"\[[^\[\]]+\]")
SLOT = re.compile(r"<(\w+)-(\w+)>")
GIVEN_UP = "I give up."


class Opponent:
    """Draws among the moves that the game has listed, else moves of some forms until one is taken.

    Args:
        forms: as in :data:`node.environments.libraries.textarena_games.FORMS`.
        rng: its own.
    """

    def __init__(self, forms: Sequence[str], rng: random.Random) -> None:
        self._rng = rng
        self._forms = [
            [_choices(part) for part in _parts(form)] for form in forms if form not in TOLD
        ]

    def move(self, game: Any) -> bool:
        """Take its turn; whether the game is over.

        The game holds a wrong move against whoever makes it. Those that the opponent tries are
        counted and told to nobody.
        """
        _, messages = game.get_observation()
        state, allowance = game.state, game.state.error_allowance
        told = {player: len(seen) for player, seen in state.observations.items()}
        state.error_allowance = MOST_TRIES + 1
        for move in self._moves(messages):
            state.error_count = 0
            over, _ = game.step(move)
            if over or not state.error_count:
                state.error_allowance = allowance
                return bool(over)
            for player, seen in state.observations.items():
                del seen[told[player] :]
        state.error_allowance = 0
        over, _ = game.step(GIVEN_UP)
        state.error_allowance = allowance
        return bool(over)

    def _moves(self, messages: Sequence[tuple[int, str, Any]]) -> Iterator[str]:
        listed = [move for _, text, _ in messages for move in _listed(text)]
        self._rng.shuffle(listed)
        yield from listed
        for _ in range(MOST_TRIES if self._forms else 0):
            yield "".join(self._rng.choice(part) for part in self._rng.choice(self._forms))


def _listed(text: str) -> list[str]:
    return [move for line in LISTED.findall(text) for move in BRACKETED.findall(line)]


def _parts(form: str) -> list[str]:
    """A form, cut at its slots."""
    return [part for part in re.split(r"(<\w+-\w+>)", form) if part]


def _choices(part: str) -> list[str]:
    """What may stand for a part of a form."""
    slot = SLOT.fullmatch(part)
    if slot is None:
        return [part]
    first, last = slot.groups()
    if first.isdecimal():
        return [str(number) for number in range(int(first), int(last) + 1)]
    return [chr(letter) for letter in range(ord(first), ord(last) + 1)]
