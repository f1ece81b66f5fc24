"""Which of the levels that a node practises comes next."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

from node.config.schema import Section
from node.errors import CatalogueError, ConfigError
from protocol.manifest import EnvSpec

EnvLevel = tuple[str, int]


class Curriculum(ABC):
    """A rule that draws levels, and may learn from how they go; each has a file in ``curricula/``.

    Args:
        group_size: completions a group.
        options: an instance of ``Options``, where it has settings of its own.

    Attributes:
        Options: those settings, keys of ``tasks.curriculum_options``; None: none.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, group_size: int, options: Any = None) -> None:
        self.group_size = group_size
        self.options = options

    @abstractmethod
    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """The level of the next task.

        Args:
            levels: what is practised.
            weights: relative frequency of every env in them, from zero up.
            rng: the only source of chance.
        """

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        """Take in how a group went that was written for a drawn level."""
        del level, rewards

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint keeps, as JSON does."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        del state


class Uniform(Curriculum):
    """Draws an env by weight, then one of its levels evenly."""

    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """Whatever was observed."""
        (env,) = rng.choices(list(weights), list(weights.values()))
        return rng.choice([level for level in levels if level[0] == env])


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


Level = tuple[str, int]

KEPT = 0.7
"""Of earlier counts, when a level is practised again: the policy has changed since."""
FADE = 0.99
"""Of counts, with every draw of any level; what is never practised becomes unknown again."""


class Beliefs:
    """A Beta distribution of the success rate of every level, as in VADE (arXiv 2511.18902).

    Counts decay as in MoPPS (arXiv 2507.04632): with a constant success rate ``p`` and groups of
    ``G`` completions, a level's first parameter tends to ``1 + G p / (1 - KEPT)`` where nothing
    fades in between. A level that was never seen has the uniform prior.
    """

    def __init__(self) -> None:
        self._draws = 0
        self._seen: dict[Level, tuple[float, float, int]] = {}

    def observe(self, level: Level, solved: float, failed: float) -> None:
        """Take in a group: its summed rewards, and what they fall short of the best."""
        won, lost = self._counts(level)
        self._seen[level] = (KEPT * won + solved, KEPT * lost + failed, self._draws)

    def draw(self, level: Level, rng: random.Random) -> float:
        """A success rate, drawn from what is believed (Thompson sampling)."""
        won, lost = self._counts(level)
        return rng.betavariate(1 + won, 1 + lost)

    def tick(self) -> None:
        """One task was chosen."""
        self._draws += 1

    def state_dict(self) -> dict[str, Any]:
        """As JSON keeps it."""
        return {"draws": self._draws, "seen": [[*k, *v] for k, v in self._seen.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from :meth:`state_dict`."""
        self._draws = state["draws"]
        self._seen = {(env, n): (won, lost, at) for env, n, won, lost, at in state["seen"]}

    def _counts(self, level: Level) -> tuple[float, float]:
        won, lost, at = self._seen.get(level, (0.0, 0.0, 0))
        left = FADE ** (self._draws - at)
        return won * left, lost * left


def teaches(rate: float, group_size: int) -> float:
    """Chance that the completions of a group are neither all right nor all wrong."""
    return 1.0 - rate**group_size - (1.0 - rate) ** group_size


class Thompson(Curriculum):
    """Draws a level by weight times the chance that a group on it teaches anything.

    It is told how groups went, draws a success rate ``p`` of every level from what it believes, and
    takes ``1 - p^G - (1 - p)^G`` (Thompson sampling, as in VADE, arXiv 2511.18902).
    """

    def __init__(self, group_size: int, options: Any = None) -> None:
        super().__init__(group_size, options)
        self._beliefs = Beliefs()

    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """The more likely, the nearer its drawn success rate is to a half."""
        self._beliefs.tick()
        sizes = Counter(env for env, _ in levels)
        shares = [
            teaches(self._beliefs.draw(level, rng), self.group_size)
            * weights[level[0]]
            / sizes[level[0]]
            for level in levels
        ]
        (level,) = rng.choices(levels, shares)
        return level

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        """Believe it a little more."""
        self._beliefs.observe(level, sum(rewards), len(rewards) - sum(rewards))

    def state_dict(self) -> dict[str, Any]:
        """What is believed."""
        return self._beliefs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Believe what was believed; nothing, if another curriculum wrote it."""
        if state:
            self._beliefs.load_state_dict(state)
