"""One environment from its first observation to its reward, with bounds on all it is told and says.

What an environment is given comes from strangers, what it says goes into a policy's context and
over the wire. Whatever it raises ends the episode with no reward, as an answer that trips its
verifier has none.
"""

from __future__ import annotations

import inspect
import math
import random
import sys
from collections.abc import Callable, Mapping
from typing import Any

from node.environments.environment import Environment

MOST_ACTION = 1 << 16
"""Characters of a turn; a longer one ends the episode untold."""
MOST_OBSERVATION = 1 << 14
"""Characters; of a longer one the beginning is told, and that it was cut."""
CUT = " [cut]"

Make = Callable[[], Environment]


class EpisodeError(ValueError):
    """An environment broke its word; the message says how."""


class Chance:
    """The generators that libraries share, as one episode has left them.

    Several episodes go on side by side in a process, and some libraries' games draw from
    ``random`` or numpy at every step.
    """

    def __init__(self, seed: int) -> None:
        self._python: Any = random.Random(seed).getstate()
        self._seed = seed
        self._numpy: Any = None

    def restore(self) -> None:
        """Let the generators go on as this episode left them."""
        random.setstate(self._python)
        if numpy := sys.modules.get("numpy.random"):
            if self._numpy is None:
                numpy.seed(self._seed >> 31)
            else:
                numpy.set_state(self._numpy)

    def keep(self) -> None:
        """Remember how far they have come."""
        self._python = random.getstate()
        if numpy := sys.modules.get("numpy.random"):
            self._numpy = numpy.get_state()


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
        self._chance.restore()
        try:
            self._environment = self._make()
            observation = await _awaited(self._environment.reset(self._seed, **self._settings))
        finally:
            self._chance.keep()
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
        self._chance.restore()
        try:
            observation, self.over = _checked(await _awaited(self._environment.step(action)))
        except (MemoryError, RecursionError):
            raise
        except Exception as error:  # noqa: BLE001 - see above
            self.over, self.tripped, observation = True, error, ""
        finally:
            self._chance.keep()
        return "" if self.over else bounded(observation)

    async def reward(self) -> float:
        """What was done is worth; nothing where the environment tripped.

        Raises:
            EpisodeError: it gave something that is no reward.
        """
        if self.tripped is not None or self._environment is None:
            return 0.0
        self._chance.restore()
        try:
            reward = await _awaited(self._environment.reward())
        except (MemoryError, RecursionError):
            raise
        except Exception as error:
            raise EpisodeError(f"reward fails: {error!r:.80}") from error
        finally:
            self._chance.keep()
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise EpisodeError(f"reward gave {reward!r}, not a number")
        if not math.isfinite(reward) or not 0.0 <= reward <= 1.0:
            raise EpisodeError(f"reward gave {reward!r}, outside [0, 1]")
        return float(reward)


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


async def _awaited(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value
