"""Which env and level the next task is drawn from."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from node.errors import ConfigError
from node.tasks.curricula.uniform import Uniform
from node.tasks.curriculum import Curriculum, EnvLevel
from node.tasks.errors import CatalogueError
from protocol.manifest import EnvSpec


def served_levels(catalogue: Sequence[EnvSpec], served: Collection[str]) -> tuple[EnvLevel, ...]:
    """Every level of the envs named in ``served``, in the catalogue's order."""
    return tuple(
        (spec.name, level)
        for spec in catalogue
        if spec.name in served
        for level in range(len(spec.levels))
    )


class TaskSampler:
    """Draws tasks by the weights of their envs and a curriculum.

    Args:
        levels: what can be drawn.
        weights: relative frequency by env name; empty means all alike, an env left out of a
            non-empty mapping is never drawn.
        rng: the only source of chance; its state is the sampler's.
        curriculum: chooses the levels; left out, all of an env are alike.

    Attributes:
        levels: what is drawn from: those of envs with a weight above zero.

    Raises:
        CatalogueError: none of the swarm's envs is served.
        ConfigError: a weight names no env, is no finite number from zero up, or none is above
            zero.
    """

    def __init__(
        self,
        levels: Sequence[EnvLevel],
        weights: Mapping[str, float],
        rng: random.Random,
        curriculum: Curriculum | None = None,
    ) -> None:
        if not levels:
            raise CatalogueError(
                "none of the swarm's envs is served here: name their files under [tasks] files, "
                "or install the packages that bring them"
            )
        names = list(dict.fromkeys(env for env, _ in levels))
        _check(weights, names)
        self._weights = {name: weights.get(name, 0.0) if weights else 1.0 for name in names}
        self._rng = rng
        self._curriculum = curriculum or Uniform(group_size=0)
        self.levels = tuple(pair for pair in levels if self._weights[pair[0]] > 0.0)
        if not self.levels:
            raise ConfigError("tasks.weights", dict(weights), "Give an env a weight above 0.")

    def next(self) -> EnvLevel:
        """Name and level of the next task."""
        return self._curriculum.next(self.levels, self._weights, self._rng)

    def observe(self, pair: EnvLevel, rewards: Sequence[float]) -> None:
        """Take in how a group went that was written for a drawn level."""
        self._curriculum.observe(pair, rewards)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"rng": self._rng.getstate(), "beliefs": self._curriculum.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint."""
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))
        self._curriculum.load_state_dict(state["beliefs"])


def _check(weights: Mapping[str, float], names: Collection[str]) -> None:
    for name, weight in weights.items():
        if name not in names:
            raise ConfigError(
                "tasks.weights",
                name,
                f"No such env is served here: use {', '.join(sorted(names))}.",
            )
        if not 0.0 <= weight < float("inf"):
            raise ConfigError(f"tasks.weights.{name}", weight, "Use a number from 0 up.")
