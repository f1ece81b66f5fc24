"""How far one group's gradient may be the update's.

A group's share is its gradient's norm over the sum of all groups' norms. Of ``N`` informative
groups no external one gets more than ``2 / N``: its gradient is scaled down to that. A loss in
which all groups weigh the same does not see to it, since a few tokens that this policy finds very
improbable have a gradient many times that of ordinary ones. Own groups are never scaled.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass

log = logging.getLogger(__name__)

MOST_SHARES = 2.0
"""Of an even division among the groups, in one of them."""
ROUNDING = 1e-9
FAR_ABOVE = 3.0
"""Times the mean norm so far, beyond which a group is probably to be scaled."""


def bound(own: float, external: Sequence[float], groups: float) -> float:
    """The largest ``t`` with ``t <= 2 / groups * (own + sum_i min(external_i, t))``.

    Args:
        own: sum of the own groups' norms.
        external: the external groups' norms.
        groups: ``N``.

    Returns:
        What the norm of an external group is scaled down to; infinity where none is too large.
    """
    share = MOST_SHARES / groups
    ordered = sorted(external, reverse=True)
    scaled, left = 0, own + math.fsum(ordered)
    while True:
        # With the `scaled` largest at t, t = share * (left + scaled * t).
        unshared = 1.0 - share * scaled
        smallest = ordered[scaled - 1] if scaled else math.inf
        level = share * left / unshared if unshared > ROUNDING else smallest
        rest = ordered[scaled:]
        if not rest or rest[0] <= level * (1 + ROUNDING):
            return level if scaled else math.inf
        scaled, left = scaled + 1, own + math.fsum(rest[1:])


@dataclass(frozen=True, slots=True)
class Influence:
    """What external groups had to do with a step.

    Attributes:
        largest_share: of one of them in the sum of the groups' gradient norms, after scaling; None
            where there is no gradient of any.
        bounded: how many were scaled down, or left out since their gradient is not finite.
    """

    largest_share: float | None = None
    bounded: int = 0


class GroupNorms:
    """Norms of the groups' gradients in one pass of a step's rows.

    Args:
        groups: informative ones that the step stands for, ``N``.
    """

    def __init__(self, groups: float) -> None:
        self._groups = groups
        self._weights: dict[int, float] = {}
        self._own: list[float] = []
        self._outside: dict[int, float] = {}
        self._held: set[int] = set()
        self._broken = 0

    def take(self, number: int, norm: float, *, own: bool, weight: float = 1.0) -> float:
        """Note the norm of a group's gradient, own groups first; what times it may be added now.

        An external group counts ``weight`` times, and so does its norm. One far above the others is
        not added before it is scaled: the difference of large numbers would leave their rounding
        behind. It is computed again in the end.
        """
        if own:
            self._own.append(norm)
            return 1.0
        if not math.isfinite(norm):
            log.warning("group %d of the update is left out: its gradient is not finite", number)
            self._broken += 1
            return 0.0
        before = [*self._own, *self._outside.values()]
        self._weights[number] = weight
        self._outside[number] = norm = norm * weight
        if before and norm <= FAR_ABOVE * math.fsum(before) / len(before):
            return weight
        self._held.add(number)
        return 0.0

    def measured(self, number: int) -> bool:
        """Whether an external group's gradient is finite."""
        return number in self._outside

    def scales(self) -> dict[int, float]:
        """By their number, what external groups' gradients are scaled by."""
        level = self._level
        return {
            number: self._weights[number] * (min(1.0, level / norm) if norm > 0 else 1.0)
            for number, norm in self._outside.items()
        }

    def missing(self) -> dict[int, float]:
        """By their number, what times external groups' gradients the update still lacks."""
        added = {n: 0.0 if n in self._held else weight for n, weight in self._weights.items()}
        factors = {number: scale - added[number] for number, scale in self.scales().items()}
        return {number: factor for number, factor in factors.items() if factor}

    def influence(self) -> Influence:
        """Of all external groups."""
        level = self._level
        scaled = [min(norm, level) for norm in self._outside.values()]
        total = math.fsum(self._own) + math.fsum(scaled)
        return Influence(
            max(scaled) / total if scaled and total > 0 else None,
            sum(norm > level for norm in self._outside.values()) + self._broken,
        )

    @property
    def _level(self) -> float:
        return bound(math.fsum(self._own), [*self._outside.values()], self._groups)
