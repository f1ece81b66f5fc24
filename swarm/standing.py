"""How far an author has proved useful to one node: a pure state machine.

An author is a newcomer until this node's own updates have shown its groups to be of use. Every
external group that an update was given reports a usefulness in [0, 1]; an author's proof is the sum
of what it earned, in which each further group makes the earlier ones count one part in ``MEMORY``
less. It never exceeds ``FULL`` and halves every ``HALF_LIFE_S`` seconds.

With these numbers a key needs four groups that were taken and fully useful before it is proven.
Newcomers together get a bounded part of an update (:mod:`swarm.mixture.mixture`), so at most three
keys in four updates get there at the default, however many wait; each costs whoever minted it four
groups that taught this node something. A proven author whose groups turn useless is a newcomer
again after eight of them at the most, one who stays away after a half-life at the most, one who
breaks the rules at once (a ban takes the whole proof). An author whose groups are worth less than a
quarter on average is never proven.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MEMORY = 12
"""Groups: as many useless ones leave a proof ``1/e`` of what it was."""
FULL = 6.0
"""Proof from which standing is 1."""
PROVEN = 0.5
"""Standing from which an author is no newcomer."""
PROMISING = 0.5
"""Proof from which a newcomer comes before those who were never tried."""
HALF_LIFE_S = 3 * 86400.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What an author has earned.

    Attributes:
        earned: between 0 and ``FULL``, as of ``at``.
        at: unix time of the last group, seconds.
    """

    earned: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        """What is left of it at unix time ``now``."""
        return self.earned * math.exp2(-max(0.0, now - self.at) / HALF_LIFE_S)

    def after(self, usefulness: float, now: float) -> Proof:
        """The proof once an update used one more group, of a usefulness in [0, 1]."""
        useful = min(1.0, max(0.0, usefulness)) if math.isfinite(usefulness) else 0.0
        return Proof(min(FULL, self.now(now) * (1.0 - 1.0 / MEMORY) + useful), now)

    def standing(self, strikes: float, most: float, now: float) -> float:
        """From 0 to 1.

        Args:
            strikes: weight of the author's strikes at ``now``.
            most: weight at which nothing of the standing is left.
        """
        return min(1.0, self.now(now) / FULL) * max(0.0, 1.0 - strikes / most)
