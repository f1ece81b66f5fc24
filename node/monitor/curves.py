"""What of a run is drawn by round, and how a curve of it is smoothed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from node.monitor.record import RoundRecord

SMOOTHED_OVER = 20
"""Of all rounds, the part that a curve's window is long when nobody chose one."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of a round.

    Attributes:
        title: what people call it, with its unit.
        of: its value in a round; ``None`` in a round that did not measure it.
        style: how a value is written, as in :func:`format`.
    """

    title: str
    of: Callable[[RoundRecord], float | None]
    style: str = ".3f"


def _external_share(record: RoundRecord) -> float | None:
    groups = record.groups_own + record.groups_external
    return record.groups_external / groups if groups else None


MEASURES = (
    Measure("reward, own", lambda r: r.reward_own),
    Measure("reward, held-out", lambda r: r.reward_eval),
    Measure("reward, external", lambda r: r.reward_external),
    Measure("external share", _external_share),
    Measure("informative share", lambda r: r.informative_own),
    Measure("entropy, nats", lambda r: r.entropy),
    Measure("tokens/s", lambda r: r.tokens_per_s, ",.0f"),
    Measure("seconds a round", lambda r: r.seconds.get("total"), ",.2f"),
    Measure("tokens a completion", lambda r: r.mean_length, ",.1f"),
)
"""What is drawn, in this order."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure by round: ``values[i]`` is of round ``rounds[i]``, which rise."""

    rounds: NDArray[np.float64]
    values: NDArray[np.float64]

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> Curve:
        """The curve through points of round and value."""
        pairs = np.array(points, np.float64).reshape(-1, 2)
        return cls(pairs[:, 0], pairs[:, 1])

    @classmethod
    def measured(cls, measure: Measure, history: Sequence[RoundRecord]) -> Curve:
        """The curve of a measure; rounds that did not measure it are left out."""
        found = ((record.round, measure.of(record)) for record in history)
        return cls.of([(number, value) for number, value in found if value is not None])

    def smoothed(self, window: float) -> Curve:
        """Each value as the mean of those measured in the ``window`` rounds around it."""
        if not len(self.rounds):
            return self
        first = np.searchsorted(self.rounds, self.rounds - window / 2, "right")
        behind = np.searchsorted(self.rounds, self.rounds + window / 2, "right")
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        return Curve(self.rounds, (sums[behind] - sums[first]) / (behind - first))

    def at(self, rounds: NDArray[np.float64]) -> list[float | None]:
        """The value at each of these rounds, straight between two that were measured; ``None``
        before the first and behind the last."""
        if not len(self.rounds):
            return [None] * len(rounds)
        inside = (self.rounds[0] <= rounds) & (rounds <= self.rounds[-1])
        values = np.interp(rounds, self.rounds, self.values)
        return [float(v) if has else None for v, has in zip(values, inside, strict=True)]


def window_for(histories: Sequence[Sequence[RoundRecord]]) -> int:
    """Rounds that curves of these histories are smoothed over when nobody chose a number."""
    return max(1, max(history[-1].round for history in histories) // SMOOTHED_OVER)
