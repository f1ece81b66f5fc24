"""Games as what a policy is taught: played well, with moves in between that are drawn."""

from __future__ import annotations

import random
from dataclasses import dataclass

from experiments.recipe.players import PLAYERS
from node.environments.environment import finished
from node.tasks.sources.environments import Environments
from node.tasks.task import Task


@dataclass(frozen=True, slots=True)
class Game:
    """One task of an environment, played anew each time.

    Attributes:
        taught: always; a game is left out of the catalogue instead.
    """

    environment: Environments
    task: Task
    taught: bool = True

    @property
    def prompt(self) -> str:
        """As the policy reads it first."""
        return self.task.prompt

    def parts(self, noise: float, slips: float, rng: random.Random) -> list[tuple[str, bool]]:
        """The turns of one episode, and between them what the environment said.

        Args:
            noise: chance of each move to be drawn without looking.
            slips: of no account: whoever slips in a game has moved otherwise.
        """
        player = PLAYERS[self.task.ref.env]
        episode = self.environment.episode(self.task.entry)
        seen = [finished(episode.begin())]
        parts = [(self.prompt, False)]
        while not episode.over:
            act = player.any if rng.random() < noise else player.good
            seen.append(act(seen, rng))
            parts.append((seen[-1], True))
            seen.append(finished(episode.step(seen[-1])))
            parts.append((f"\n{seen[-1]}\n", False))
        return parts[:-1]
