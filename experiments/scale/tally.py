"""What one node spends on the network in an epoch."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum


class Kind(IntEnum):
    """What it is spent on."""

    TABLE = 0
    GOSSIP = 1
    FRAMES = 2


@dataclass(slots=True)
class Tally:
    """Of one node, since it was last cleared.

    Attributes:
        rpcs: requests that this node sent, by :class:`Kind`.
        asked: bytes of these requests and of what was answered, by :class:`Kind`.
        served: bytes of others' requests to this node and of its answers.
    """

    rpcs: list[float] = field(default_factory=lambda: [0.0] * len(Kind))
    asked: list[float] = field(default_factory=lambda: [0.0] * len(Kind))
    served: float = 0.0

    @property
    def bytes(self) -> float:
        """All that went in and out on account of requests."""
        return sum(self.asked) + self.served

    def clear(self) -> None:
        """Begin anew."""
        self.rpcs[:] = self.asked[:] = [0.0] * len(Kind)
        self.served = 0.0
