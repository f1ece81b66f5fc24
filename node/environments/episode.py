"""One environment from its first observation to its reward, with bounds on all it is told and says.

What an environment is given comes from strangers, what it says goes into a policy's context and
over the wire. Whatever it raises ends the episode with no reward, as an answer that trips its
verifier has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from inspect import isawaitable
from typing import Any

from node.environments.chance import Chance
from node.environments.driving import awaited, surrounded
from node.environments.environment import Environment

MOST_ACTION = 1 << 16
"""Characters of a turn; a longer one ends the episode untold."""
MOST_OBSERVATION = 1 << 14
"""Characters; of a longer one the beginning is told, and that it was cut."""
CUT = " [cut]"

Make = Callable[[], Environment]


class EpisodeError(ValueError):
    """An environment broke its word; the message says how."""


class Episode:
    """One episode; :meth:`begin` first, then steps until it is over.

    Args:
        make: a fresh environment.
        seed: 63 bits.
        settings: of its level.

    Attributes:
        over: whether the environment has said so, or tripped.
        tripped: what it raised, if it did.
    """

    def __init__(self, make: Make, seed: int, settings: Mapping[str, Any]) -> None:
        self._make = make
        self._seed = seed
        self._settings = settings
        self._chance = Chance(seed)
        self._environment: Environment | None = None
        self.over = False
        self.tripped: Exception | None = None

    async def begin(self) -> str:
        """The first observation.

        Raises:
            EpisodeError: there is none.
        """
        with self._chance:
            self._environment = self._make()
        reset = partial(self._environment.reset, self._seed, **self._settings)
        observation = await self._told(reset)
        if not isinstance(observation, str):
            raise EpisodeError(f"reset gave {type(observation).__name__}, not a text")
        return bounded(observation)

    async def step(self, action: str) -> str:
        """Hand on a turn of the policy; the next observation, empty where it is over.

        Raises:
            EpisodeError: it is over already.
            MemoryError, RecursionError: what comes of it would depend on the machine.
        """
        if self.over or self._environment is None:
            raise EpisodeError("a turn after the end")
        if len(action) > MOST_ACTION:
            self.over = True
            return ""
        try:
            observation, self.over = _checked(await self._told(self._environment.step, action))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self.over, self.tripped, observation = True, error, ""
        return "" if self.over else bounded(observation)

    async def reward(self) -> float:
        """What was done is worth; nothing where the environment tripped.

        Raises:
            EpisodeError: it gave something that is no reward.
        """
        if self.tripped is not None or self._environment is None:
            return 0.0
        try:
            reward = await self._told(self._environment.reward)
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise EpisodeError(f"reward fails: {error!r:.80}") from error
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise EpisodeError(f"reward gave {reward!r}, not a number")
        if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
            raise EpisodeError(f"reward gave {reward!r}, outside [0, 1]")
        return float(reward)

    async def _told(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """What a method of the environment gives, or what comes of waiting for that."""
        with self._chance:
            told = method(*arguments)
        return await surrounded(awaited(told), self._chance) if isawaitable(told) else told


def bounded(observation: str) -> str:
    """An observation that can be sent: no lone surrogates, and not too long."""
    text = observation.encode(errors="replace").decode()
    if len(text) <= MOST_OBSERVATION:
        return text
    return text[: MOST_OBSERVATION - len(CUT)] + CUT


def _checked(told: Any) -> tuple[str, bool]:
    match told:
        case (str() as observation, bool() as over):
            return observation, over
    raise EpisodeError(f"step gave {told!r:.80}, not an observation and whether it is over")
