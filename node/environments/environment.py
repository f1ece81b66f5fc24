"""What the author of an environment writes."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, ClassVar, Protocol


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

    def reset(self, seed: int, **settings: Any) -> str | Awaitable[str]:
        """Begin; the first observation.

        Args:
            seed: 63 bits, all that an episode's chance may follow from.
            settings: of the catalogue's level, as its own signature names and types them.
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
