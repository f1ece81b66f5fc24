"""Gymnasium environments (https://gymnasium.farama.org) played as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from typing import Any, ClassVar

import gymnasium
from gymnasium import spaces

from node.environments.environment import Environment, adapted

LISTED = 8  # Maximum actions named individually; of more, the prompt names the first and last.


class NamedActions:
    """The last action name in a turn, as a whole word, in any case.

    ``asked`` describes the actions to the policy; :meth:`read` returns None if a turn names none.
    """

    def __init__(self, first: int, names: Sequence[str]) -> None:
        self._numbers = {name.casefold(): first + n for n, name in enumerate(names)}
        words = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words))})(?!\w)")
        text = ", ".join(names)
        self.asked = f"Answer with {text if len(names) <= LISTED else f'{names[0]} to {names[-1]}'}"

    def read(self, turn: str) -> int | None:
        matches = self._pattern.findall(turn.casefold())
        return self._numbers[matches[-1]] if matches else None


class TextActions:
    """The whole turn, if the space contains it."""

    def __init__(self, space: Any) -> None:
        self._space = space
        self.asked = f"Answer with {space.min_length} to {space.max_length} characters"

    def read(self, turn: str) -> str | None:
        return turn if self._space.contains(turn) else None


def actions_of(space: Any, names: Sequence[str] | None) -> NamedActions | TextActions:
    """Return the actions of a space; ``Discrete`` ones by ``names`` or numbers."""
    if isinstance(space, spaces.Text):
        return TextActions(space)
    numbers = range(int(space.start), int(space.start + space.n))
    return NamedActions(numbers[0], names or [str(number) for number in numbers])


def unnamed(space: Any, names: Any) -> str | None:
    """Return why text cannot name the actions of a space, if so."""
    if isinstance(space, spaces.Text):
        return "actions are for a Discrete space, this one takes Text" if names else None
    if not isinstance(space, spaces.Discrete):
        return f"it takes {space!r:.80}: use an environment of Text or Discrete actions"
    if space.n > 1 << 16:
        return f"it takes one of {space.n} actions: use an environment of up to 65536"
    if names is None:
        return None
    words = names if isinstance(names, list) else []
    valid = all(isinstance(word, str) and word.strip() for word in words)
    if not valid or len({word.casefold() for word in words}) != space.n:
        return f"actions: name all {space.n}, in their order, each by another word"
    return None


ADAPTER = 1  # Increase it whenever the same settings, seed and actions give other results.
NUMBERS = 1_000_000
MOST = 64  # Maximum characters of an option, values of a list, and number of options.


class SpokenEpisode:
    """One episode with text actions and observations.

    ``Text`` observations are shown unchanged; ``Discrete``, ``MultiDiscrete`` and ``MultiBinary``
    ones as numbers; the parts of a ``Tuple`` in sequence. A turn without an action gets the prompt
    again, and the environment does not advance.

    The reward is the sum of rewards, mapped from [``low``, ``high``] to [0, 1]. It is 0 before the
    end; otherwise doing nothing would win where every step costs.
    """

    def begin(
        self, named: str, made: Any, seed: int, low: float, high: float, actions: list[str] | None
    ) -> str:
        """Begin an episode of ``made``; return the prompt and the first observation."""
        self._environment = made
        self._low, self._high = float(low), float(high)
        self._sum, self._over = 0.0, False
        self._actions = actions_of(made.action_space, actions)
        observation, _ = made.reset(seed=seed)
        prompt = f"{named}, episode {seed % NUMBERS}\n{self._actions.asked}"
        return f"{prompt}\n{self._shown(observation)}"

    def step(self, action: str) -> tuple[str, bool]:
        choice = self._actions.read(action)
        if choice is None:
            return self._actions.asked, False
        observation, reward, terminated, truncated, _ = self._environment.step(choice)
        self._sum += float(reward)
        self._over = bool(terminated or truncated)
        return self._shown(observation), self._over

    def reward(self) -> float:
        """Return the sum of rewards, scaled from ``low`` and ``high``."""
        if not self._over:
            return 0.0
        return min(1.0, max(0.0, (self._sum - self._low) / (self._high - self._low)))

    def _shown(self, observation: Any) -> str:
        return _shown(self._environment.observation_space, observation)


class GymnasiumTask(SpokenEpisode):
    """One episode of a registered environment."""

    version: ClassVar[str] = f"{metadata.version('gymnasium')}+{ADAPTER}"
    replayable: ClassVar[bool] = True

    @staticmethod
    def refusal(settings: Mapping[str, Any]) -> str | None:
        """Return why an environment cannot be played as text, if so."""
        env_id = settings["id"]
        if env_id not in gymnasium.registry:
            return f"id = {env_id!r:.60} is not registered: see gymnasium.pprint_registry()"
        return _refusal(partial(_registered, env_id), f"id = {env_id!r}", settings)

    def reset(
        self,
        seed: int,
        *,
        id: str,
        low: float = 0.0,
        high: float = 1.0,
        actions: list[str] | None = None,
        options: dict[str, Any] | None = None,
    ) -> str:
        """Begin an episode.

        ``low`` and ``high`` are sums of rewards with reward 0 and 1. ``actions`` names a
        ``Discrete`` space's actions in order, by default by number. ``options`` go to the
        environment.
        """
        return self.begin(id, _registered(id, **(options or {})), seed, low, high, actions)


def as_environment(found: type[Any]) -> type[Environment]:
    """Return the environment of a Gymnasium class; its settings lack only ``id``.

    The class must define ``replayable``, and ``version`` if it is in a package.
    """

    class Own(SpokenEpisode):
        @staticmethod
        def refusal(settings: Mapping[str, Any]) -> str | None:
            return _refusal(found, found.__name__, settings)

        def reset(
            self,
            seed: int,
            *,
            low: float = 0.0,
            high: float = 1.0,
            actions: list[str] | None = None,
            options: dict[str, Any] | None = None,
        ) -> str:
            return self.begin(found.__name__, found(**(options or {})), seed, low, high, actions)

    return adapted(found, Own)


def _refusal(make: Callable[..., Any], subject: str, settings: Mapping[str, Any]) -> str | None:
    low, high = settings.get("low", 0.0), settings.get("high", 1.0)
    options, names = settings.get("options"), settings.get("actions")
    if not low < high:
        return f"low = {low} is not below high = {high}"
    if not _plain(options):
        return "options: use numbers, true, false, short texts, and lists of up to 64 of them"
    try:
        env = make(**(options or {}))
    except Exception as error:  # noqa: BLE001 - whatever it raises, it cannot be made
        return f"{subject} cannot be made: {error!r:.200}"
    if not _readable(space := env.observation_space):
        return f"{subject} shows {space!r:.80}: use one that shows text or whole numbers"
    return unnamed(env.action_space, names)


def _registered(named: str, **options: Any) -> Any:
    return gymnasium.make(named, disable_env_checker=True, **options)


def _plain(options: Any) -> bool:
    if not isinstance(options, dict):
        return options is None
    lists = [value if isinstance(value, list) else [value] for value in options.values()]
    return len(options) <= MOST and all(len(x) <= MOST and all(map(_short, x)) for x in lists)


def _short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= MOST)


def _readable(space: Any) -> bool:
    if isinstance(space, spaces.Tuple):
        return all(map(_readable, space.spaces))
    kinds = (spaces.Text, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
    return isinstance(space, kinds)


def _shown(space: Any, observation: Any) -> str:
    if isinstance(space, spaces.Text):
        return str(observation)
    if isinstance(space, spaces.Tuple):
        return " ".join(_shown(*pair) for pair in zip(space.spaces, observation, strict=True))
    if isinstance(space, spaces.Discrete):
        return str(int(observation))
    return " ".join(str(int(number)) for number in observation.flat)
