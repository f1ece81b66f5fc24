"""Games of TextArena (https://github.com/LeonGuertler/TextArena), alone or against lots."""

from __future__ import annotations

import importlib
import random
from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, ClassVar

import textarena
from textarena.envs.registration import ENV_REGISTRY

from node.environments.libraries.textarena_games import (
    ALONE,
    FORMS,
    REFUSED,
    REFUSED_VARIANTS,
)
from node.environments.libraries.textarena_opponent import Opponent

ADAPTER = 1
"""Raised whenever the same game, seed and actions would give anything else."""
NUMBERS = 1_000_000
MOST_TURNS = 1024
"""Of an opponent in a row."""

Message = tuple[int, str, Any]


class TextArenaGame:
    """One game; the policy sits where the seed says.

    The policy reads what the game tells it, of boards the last, and what the opponent says; its
    turns are put into brackets where the game's own wrappers do. Worth the game's reward, which of
    one player is from 0 to 1 and of two from -1, where it is lost, to 1; nothing before its end.
    """

    version: ClassVar[str] = f"{metadata.version('textarena')}+{ADAPTER}"
    replayable: ClassVar[bool] = True

    @staticmethod
    def refusal(settings: Mapping[str, Any]) -> str | None:
        """Why a game is not played, if it is not."""
        game = settings["game"]
        name = _name(game)
        if why := REFUSED.get(name) or REFUSED_VARIANTS.get(game):
            return f"game = {game!r} is not played: {why}"
        if name not in ALONE | FORMS.keys() or game not in ENV_REGISTRY:
            known = ", ".join(sorted(ALONE | FORMS.keys()))
            return f"game = {game!r:.60} is not known; of version v0 there are {known}"
        if game.endswith(("-raw", "-train")):
            return f"game = {game!r}: leave out -{game.rpartition('-')[2]}"
        # Now, since a library that it draws from has to be there before an episode begins.
        importlib.import_module(ENV_REGISTRY[game].entry_point.partition(":")[0])
        return None

    def reset(self, seed: int, *, game: str) -> str:
        """Begin the game with that id, such as ``Mastermind-v0``; opponents may move first."""
        rng = random.Random(f"textarena/{seed}")
        forms = FORMS.get(_name(game))
        players = 1 if forms is None else 2
        self._seat = rng.randrange(players)
        self._opponent = Opponent(forms or (), rng)
        self._over = False
        self._game = textarena.make(f"{game}-raw")
        self._game.reset(num_players=players, seed=seed)
        for wrapper in ENV_REGISTRY[game].default_wrappers or ():
            if issubclass(wrapper, textarena.ActionWrapper):
                self._game = wrapper(self._game)
        return f"Game {seed % NUMBERS}\n{self._observation()}"

    def step(self, action: str) -> tuple[str, bool]:
        """Make a move; a second wrong one in a row loses."""
        self._over, _ = self._game.step(action)
        return self._observation(), bool(self._over)

    def reward(self) -> float:
        """What the game gives for it."""
        rewards = self._game.state.rewards
        if not self._over or rewards is None:
            return 0.0
        given = rewards[self._seat]
        if not isinstance(given, int | float):
            return 0.0  # ThreeCardMonte has a wrong move's reason in its reward's place
        two = self._game.state.num_players == 2
        return min(1.0, max(0.0, (given + 1) / 2 if two else float(given)))

    def _observation(self) -> str:
        """What was told since the policy's last turn; opponents have theirs before."""
        state = self._game.state
        for _ in range(MOST_TURNS):
            if self._over or state.current_player_id == self._seat:
                break
            self._over = self._opponent.move(self._game)
        else:
            raise RuntimeError("the policy's turn does not come")
        if self._over:
            return ""
        _, messages = self._game.get_observation()
        return told(messages, self._seat)


def told(messages: Sequence[Message], seat: int) -> str:
    """Messages as their reader reads them: the last board, and nothing that the reader wrote."""
    kinds = textarena.ObservationType
    boards = [n for n, (_, _, kind) in enumerate(messages) if kind is kinds.GAME_BOARD]
    lines = []
    for n, (sender, text, kind) in enumerate(messages):
        if kind is kinds.PLAYER_ACTION and sender == seat:
            continue
        if kind is kinds.GAME_BOARD and n != boards[-1]:
            continue
        lines.append(text if sender == textarena.GAME_ID else f"Player {sender}: {text}")
    return "\n".join(line.strip("\n") for line in lines)


def _name(game: str) -> str:
    return game.partition("-v0")[0]
