"""A selection of one's own: of each author, the groups nearest to half right come first."""

from __future__ import annotations

import random
from collections.abc import Sequence

from swarm.groups import Candidate
from swarm.mixture import AutoSelection


class Undecided(AutoSelection):
    """Takes as many groups as ``auto`` does, those of the largest variance of rewards first.

    A group's gradient is largest where its rewards vary most, as in VCRL (arXiv:2509.19803).
    """

    newest = None

    def order(self, groups: Sequence[Candidate], rng: random.Random) -> list[Candidate]:
        """Equals in a drawn order."""
        drawn = super().order(groups, rng)
        return sorted(drawn, key=lambda group: abs(sum(group.rewards) / len(group.rewards) - 0.5))
