"""Which outside groups an update takes beside the own ones.

``uniform`` is SAPO's rule (arXiv 2509.08721, section 3 and the set-up of its experiments): outside
groups without advantage are dropped first, then J of the rest are drawn uniformly.

``auto`` keeps the draw and lets the number follow from what it is for. A group whose rewards are
all equal teaches nothing, and most own groups of a weak policy are of that kind; what sharing adds
is groups that are not. So an update is filled up to a fixed number of informative groups, own ones
first, as dynamic sampling does by generating more (DAPO, arXiv 2503.14476, section 3.2). Where
peers do worse on what they share than this policy would, both what is taken and what it spares the
node are scaled down, until the node lives on its own experience. Where the pool holds far more than
there is room for, the draw is among the newest: what peers wrote long ago is no measure of them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from swarm.lead import PeersLead
from swarm.pooled_group import Candidate

NEWEST = 4
"""Groups that ``auto`` draws each one from, so that no author's last frame fills an update."""


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """What is taken from outside.

    Attributes:
        external: J, own groups that outside ones spare. ``uniform`` takes so many at most;
            ``auto`` takes nothing where it is zero.
        select: how many are taken, as this module explains.
        informative: groups with advantage, own and outside, to which ``auto`` fills an update.
        discard: groups without advantage are dropped first.
    """

    external: int = 6
    select: Literal["uniform", "auto"] = "auto"
    informative: int = 12
    discard: bool = True


class Mixture:
    """A pure state machine: the same seed, observations, turn, own share and set of candidates give
    the same groups.

    Args:
        config: how many are taken.
        seed: of this node; other nodes' choices should differ.
        lead: of peers, as far as it is known.
    """

    def __init__(self, config: MixtureConfig, seed: int, lead: PeersLead | None = None) -> None:
        self._config = config
        self._seed = seed
        self._lead = lead or PeersLead()

    def observe(self, lead: float, groups: int) -> None:
        """Take in how far peers were ahead on the outside groups of an update."""
        self._lead.observe(lead, groups)

    def spared(self, available: int) -> int:
        """Own groups that need not be generated.

        Args:
            available: outside groups with advantage that could be taken.
        """
        return min(available, round(self._worth * self._config.external))

    def wanted(self, informative: int) -> int:
        """Outside groups that an update has room for.

        Args:
            informative: own groups in the update that have an advantage.
        """
        config = self._config
        if config.select == "uniform" or config.external == 0:
            return config.external
        room = max(0, config.informative - informative)
        # One is always taken: without any, peers could never be seen to catch up.
        return max(min(1, room), round(self._worth * room))

    @property
    def _worth(self) -> float:
        return 1.0 if self._config.select == "uniform" else self._lead.worth

    def choose(
        self, candidates: Sequence[Candidate], turn: int, informative: int
    ) -> list[Candidate]:
        """As many candidates with advantage as are wanted, uniformly without replacement.

        Those that earlier updates used less often come first.

        Args:
            candidates: with distinct keys; their order does not matter.
            turn: number of the choice, usually the round; each turn draws anew.
            informative: see :meth:`wanted`.

        Returns:
            The chosen, in random order; fewer where there are not enough.
        """
        useful = [c for c in candidates if c.informative or not self._config.discard]
        useful.sort(key=lambda c: (c.uses, c.key))
        draw = random.Random(f"mixture/{self._seed}/{turn}")
        chosen: list[Candidate] = []
        for _, equals in groupby(useful, key=lambda c: c.uses):
            room = self.wanted(informative) - len(chosen)
            tier = self._newest(list(equals), NEWEST * room)
            chosen += draw.sample(tier, min(room, len(tier)))
        return chosen

    def _newest(self, candidates: list[Candidate], count: int) -> list[Candidate]:
        """As many of them as ``auto`` draws from, in the order of keys."""
        if self._config.select == "uniform" or len(candidates) <= count:
            return candidates
        newest = sorted(candidates, key=lambda c: (-c.received, c.key))[:count]
        return sorted(newest, key=lambda c: c.key)
