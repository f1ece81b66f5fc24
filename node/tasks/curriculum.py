"""Curricula, which select the next task's difficulty level, and the task sampler."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from node.config.schema import Section
from node.errors import ConfigError, TaskSetError
from protocol.manifest import EnvSpec

EnvLevel = tuple[str, int]
EnvLevels = Sequence[EnvLevel]


class Curriculum(ABC):
    """A rule that samples levels and may learn from their rewards.

    ``Options`` is the schema of ``tasks.curriculum_options``, None if there are no settings.
    ``options`` is its instance; ``group_size`` counts the completions per group.
    """

    Options: ClassVar[type[Section] | None] = None

    def __init__(self, group_size: int, options: Any = None) -> None:
        self.group_size = group_size
        self.options = options

    @abstractmethod
    def next(
        self, levels: Sequence[EnvLevel], weights: Mapping[str, float], rng: random.Random
    ) -> EnvLevel:
        """Return the level of the next task.

        ``weights`` are relative frequencies by env, at least 0. All randomness is from ``rng``.
        """

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        """Record the rewards of a group generated for a sampled level."""
        del level, rewards

    def state_dict(self) -> dict[str, Any]:
        """Return the JSON-compatible checkpoint state."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of :meth:`state_dict`; not called with another curriculum's."""
        del state


class UniformCurriculum(Curriculum):
    """Curriculum that samples an env by weight, then one of its levels uniformly."""

    def next(self, levels: EnvLevels, weights: Mapping[str, float], rng: random.Random) -> EnvLevel:
        (env,) = rng.choices(list(weights), list(weights.values()))
        return rng.choice([level for level in levels if level[0] == env])


EVENLY = UniformCurriculum(group_size=0)


def served_levels(task_set: Sequence[EnvSpec], served: Collection[str]) -> tuple[EnvLevel, ...]:
    """Return all levels of the envs in ``served``, in task set order."""
    specs = [spec for spec in task_set if spec.name in served]
    return tuple((spec.name, level) for spec in specs for level in range(len(spec.levels)))


def chosen_levels(levels: EnvLevels, chosen: Mapping[str, Sequence[int]]) -> tuple[EnvLevel, ...]:
    """Return the levels that ``tasks.levels`` leaves; a family not named there keeps all of its.

    Raises ConfigError if it names a family that is not served or a level that is not there.
    """
    names = sorted({env for env, _ in levels})
    for env, numbers in chosen.items():
        if env not in names:
            remedy = f"No such family is available here: use {', '.join(names)}."
            raise ConfigError("tasks.levels", env, remedy)
        if not numbers:
            remedy = "List its levels. To leave the family out, give the others tasks.weights."
            raise ConfigError(f"tasks.levels.{env}", [], remedy)
        top = max(level for name, level in levels if name == env)
        for number in numbers:
            if number > top:
                raise ConfigError(f"tasks.levels.{env}", number, f"Use a level from 0 to {top}.")
    return tuple(pair for pair in levels if pair[1] in chosen.get(pair[0], (pair[1],)))


class TaskSampler:
    """Sampler of tasks by env weights and a curriculum (default: uniform).

    ``weights`` are relative frequencies by env name. Empty: all equal; a missing env is never
    sampled. All randomness is from ``rng``, whose state is the sampler's. Raises TaskSetError:
    none of the swarm's envs is served; ConfigError: a weight is invalid or names an unknown env, or
    no weight is positive.
    """

    def __init__(
        self,
        levels: EnvLevels,
        weights: Mapping[str, float],
        rng: random.Random,
        curriculum: Curriculum | None = None,
    ) -> None:
        if not levels:
            raise TaskSetError(
                "none of the swarm's task families is available here: name their files under "
                "[tasks] files, allow code with tasks.allow_code_execution, or install packages"
            )
        names = list(dict.fromkeys(env for env, _ in levels))
        for name, weight in weights.items():
            if name not in names:
                remedy = f"No such family is available here: use {', '.join(sorted(names))}."
                raise ConfigError("tasks.weights", name, remedy)
            if not 0.0 <= weight < float("inf"):
                raise ConfigError(f"tasks.weights.{name}", weight, "Use a number of at least 0.")
        self._weights = {name: weights.get(name, 0.0) if weights else 1.0 for name in names}
        self._rng = rng
        self._curriculum = curriculum or EVENLY
        self.levels = tuple(pair for pair in levels if self._weights[pair[0]] > 0.0)
        if not self.levels:
            raise ConfigError("tasks.weights", dict(weights), "Give a family a weight above 0.")

    def next(self) -> EnvLevel:
        return self._curriculum.next(self.levels, self._weights, self._rng)

    def observe(self, pair: EnvLevel, rewards: Sequence[float]) -> None:
        self._curriculum.observe(pair, rewards)

    def state_dict(self) -> dict[str, Any]:
        beliefs = {"kind": _kind(self._curriculum), "beliefs": self._curriculum.state_dict()}
        return {"rng": self._rng.getstate(), **beliefs}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`, without the state of another kind of curriculum."""
        version, words, gauss = state["rng"]
        self._rng.setstate((version, tuple(words), gauss))
        if state.get("kind", _kind(self._curriculum)) == _kind(self._curriculum):
            self._curriculum.load_state_dict(state["beliefs"])


def _kind(curriculum: Curriculum) -> str:
    """Return the name of the class that defines a curriculum's state, which others inherit."""
    (owner, *_) = (cls for cls in type(curriculum).__mro__ if "state_dict" in vars(cls))
    return f"{owner.__module__}.{owner.__qualname__}"


KEPT = 0.7  # Fraction of counts that remains at each observation: the policy has changed since.
FADE = 0.99  # Decay of all counts per sampled task; unused levels become unknown again.


class Beliefs:
    """Beta distribution of each level's success rate, as in VADE (arXiv 2511.18902).

    Counts decay as in MoPPS (arXiv 2507.04632): at a constant rate ``p``, with groups of ``G``, a
    level's first parameter tends to ``1 + G p / (1 - kept)``. The prior is uniform.
    """

    def __init__(self, kept: float = KEPT) -> None:
        self._kept = kept
        self._draws = 0
        self._seen: dict[EnvLevel, tuple[float, float, int]] = {}

    def observe(self, level: EnvLevel, solved: float, failed: float) -> None:
        """Record a group: its summed rewards, and their shortfall from the maximum."""
        wins, losses = self._counts(level)
        self._seen[level] = (self._kept * wins + solved, self._kept * losses + failed, self._draws)

    def draw(self, level: EnvLevel, rng: random.Random) -> float:
        """Sample a success rate (Thompson sampling)."""
        wins, losses = self._counts(level)
        return rng.betavariate(1 + wins, 1 + losses)

    def tick(self) -> None:
        self._draws += 1

    def state_dict(self) -> dict[str, Any]:
        return {"draws": self._draws, "seen": [[*k, *v] for k, v in self._seen.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._draws = state["draws"]
        self._seen = {(env, n): (wins, losses, at) for env, n, wins, losses, at in state["seen"]}

    def _counts(self, level: EnvLevel) -> tuple[float, float]:
        wins, losses, draw = self._seen.get(level, (0.0, 0.0, 0))
        decay = FADE ** (self._draws - draw)
        return wins * decay, losses * decay


def informative_probability(rate: float, group_size: int) -> float:
    """Return the probability that a group is neither all right nor all wrong."""
    return 1.0 - rate**group_size - (1.0 - rate) ** group_size


class Thompson(Curriculum):
    """Curriculum that favors levels likely to give informative groups.

    A level's probability is proportional to its share of the env's weight, times ``1 - p^G - (1 -
    p)^G``, with ``p`` sampled from :class:`Beliefs`.
    """

    kept: ClassVar[float] = KEPT

    def __init__(self, group_size: int, options: Any = None) -> None:
        super().__init__(group_size, options)
        self._beliefs = Beliefs(self.kept)

    def next(self, levels: EnvLevels, weights: Mapping[str, float], rng: random.Random) -> EnvLevel:
        self._beliefs.tick()
        sizes = Counter(env for env, _ in levels)
        shares = [
            informative_probability(self._beliefs.draw((env, number), rng), self.group_size)
            * weights[env]
            / sizes[env]
            for env, number in levels
        ]
        (level,) = rng.choices(levels, shares)
        return level

    def observe(self, level: EnvLevel, rewards: Sequence[float]) -> None:
        self._beliefs.observe(level, sum(rewards), len(rewards) - sum(rewards))

    def state_dict(self) -> dict[str, Any]:
        return self._beliefs.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state; ignore the empty state of another curriculum."""
        if state:
            self._beliefs.load_state_dict(state)


class Skill(Thompson):
    """Curriculum that follows the policy's skill up the levels of each family.

    A level counts as no easier than those below it, so nothing is spent on the levels above one
    that is never solved. A family's probability is proportional to its weight times the best
    ``1 - p^G - (1 - p)^G`` of its levels, with ``p`` sampled from :class:`Beliefs`, and a level's
    to its own. One task in ``1 / EVEN`` is drawn as by :class:`UniformCurriculum`: what was too
    hard or is mastered is tried again.
    """

    EVEN = 0.1
    kept = 0.9  # Most levels of a graded set are out of reach, and stay so for long.

    def next(self, levels: EnvLevels, weights: Mapping[str, float], rng: random.Random) -> EnvLevel:
        self._beliefs.tick()
        if rng.random() < self.EVEN:
            return EVENLY.next(levels, weights, rng)
        scores: dict[str, dict[EnvLevel, float]] = {}
        for env, group in groupby(sorted(levels), key=itemgetter(0)):
            rate, scores[env] = 1.0, {}
            for level in group:
                rate = min(rate, self._beliefs.draw(level, rng))
                scores[env][level] = informative_probability(rate, self.group_size)
        shares = [weights[env] * max(by_level.values()) for env, by_level in scores.items()]
        (env,) = rng.choices(list(scores), shares)
        (level,) = rng.choices(list(scores[env]), list(scores[env].values()))
        return level


class AutoCurriculum(Skill):
    """``skill`` where a family has six levels or more, else ``uniform``."""

    GRADED = 6

    def next(self, levels: EnvLevels, weights: Mapping[str, float], rng: random.Random) -> EnvLevel:
        if max(Counter(env for env, _ in levels).values()) < self.GRADED:
            return EVENLY.next(levels, weights, rng)
        return super().next(levels, weights, rng)
