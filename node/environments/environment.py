"""What the author of an environment writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import ClassVar, Protocol


class Environment(Protocol):
    """A task of many turns; one instance is one episode. Each method may be ``async``.

    Attributes:
        version: raised whenever the same seed and actions would give anything else.
        replayable: the same seed, settings and actions give the same observations, byte for byte,
            and the same reward, in every process and on every machine. What draws from
            ``random.Random(seed)`` alone is; what asks a clock, a network or a model is not.
            Only what is replayable is shared with others, and learned from where others share it.
    """

    version: ClassVar[str]
    replayable: ClassVar[bool]

    @property
    def reset(self) -> Callable[..., str | Awaitable[str]]:
        """A method ``reset(self, seed, *, ...)`` that begins, and gives the first observation.

        Its ``seed`` has 63 bits, and is all that an episode's chance may follow from. Its other
        arguments are the settings of the catalogue's level, which give them by name.
        """
        ...

    def step(self, action: str) -> tuple[str, bool] | Awaitable[tuple[str, bool]]:
        """Take a turn of the policy, any text at all; the next observation, and whether it is over.

        The last observation, with which it is over, is read by nobody.
        """
        ...

    def reward(self) -> float | Awaitable[float]:
        """What was done so far is worth, in [0, 1]."""
        ...
