"""Which outside groups an update takes: J of them beside I own ones.

SAPO (arXiv 2509.08721, section 3 and the set-up of its experiments): outside groups without
advantage are dropped first, then the rest is sampled uniformly.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from swarm.pooled_group import Candidate


@dataclass(frozen=True, slots=True)
class MixtureConfig:
    """What is taken from outside.

    Attributes:
        external: J, outside groups in an update at most.
        select: how they are chosen.
        discard: groups without advantage are dropped first.
    """

    external: int = 4
    select: Literal["uniform"] = "uniform"
    discard: bool = True


class Mixture:
    """A pure choice: the same seed, turn and set of candidates give the same groups.

    Args:
        config: J and the kind of selection.
        seed: of this node; other nodes' choices should differ.
    """

    def __init__(self, config: MixtureConfig, seed: int) -> None:
        self._config = config
        self._seed = seed

    def choose(self, candidates: Sequence[Candidate], turn: int) -> list[Candidate]:
        """Up to J candidates with advantage, uniformly without replacement, in random order.

        Args:
            candidates: with distinct keys; their order does not matter.
            turn: number of the choice, usually the round; each turn draws anew.
        """
        config = self._config
        useful = [c for c in candidates if c.informative or not config.discard]
        useful.sort(key=lambda c: c.key)
        draw = random.Random(f"mixture/{self._seed}/{turn}")
        return draw.sample(useful, min(config.external, len(useful)))
