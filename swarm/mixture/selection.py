"""Selection rules: how many peers' groups an update takes, and in which order."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from swarm.groups import Candidate
from swarm.mixture.peer_advantage import PeersLead


class MixtureSettings(Protocol):
    """Composition of an update in groups: keys of the ``mixture`` section."""

    @property
    def local(self) -> int:
        """I, local groups that an update always has."""

    @property
    def external(self) -> int:
        """J, local groups that peers' groups replace; 0 disables them."""

    @property
    def target_groups(self) -> int:
        """Maximum informative groups, local and peers', to fill an update up to."""

    @property
    def author_share(self) -> float:
        """Maximum fraction of an update's groups from one author."""

    @property
    def unproven_share(self) -> float:
        """Maximum fraction of an update's groups from all unproven authors."""


class Selection(ABC):
    """A rule for the peers' groups in an update (plugins: ``swarm_node.selections``).

    The caps and the sampling of authors before groups apply to every rule
    (:mod:`swarm.mixture.mixture`).

    Attributes:
        Options: pydantic model of the rule's settings in ``mixture.select_options``, or None.
        newest: sample among an author's newest groups, this multiple of the room; None: all.
    """

    Options: ClassVar[Any] = None
    newest: ClassVar[int | None] = None

    def __init__(self, sizes: MixtureSettings, lead: PeersLead, options: Any = None) -> None:
        self.sizes = sizes
        self.lead = lead
        self.options = options

    @property
    @abstractmethod
    def slots(self) -> int:
        """Groups that an update is made for, and the maximum base of the shares."""

    @abstractmethod
    def room(self, informative: int) -> int:
        """Return the room for peers' groups beside ``informative`` local groups."""

    @property
    def worth(self) -> float:
        """Fraction of proven peers' groups that replaces local groups, in [0, 1]."""
        return 1.0

    def order(self, groups: Sequence[Candidate], draw: random.Random) -> list[Candidate]:
        """Return one author's groups in random order, with ``draw`` as only randomness."""
        return draw.sample(groups, len(groups))


class AutoSelection(Selection):
    """Fills an update with informative groups, scaled by the peers' advantage.

    Groups with equal rewards teach nothing, and most local groups of a weak policy are such. The
    update is therefore filled up to a fixed number of informative groups, local ones first. Dynamic
    sampling does the same by generating more (DAPO, arXiv 2503.14476, section 3.2). If peers earn
    less on tasks of the same level, fewer of their groups are taken and they replace fewer local
    groups. If the replay buffer holds far more groups than needed, the newest are sampled, because
    old groups do not represent their authors.
    """

    newest = 4

    @property
    def slots(self) -> int:
        return self.sizes.target_groups

    def room(self, informative: int) -> int:
        if self.sizes.external == 0:
            return 0
        room = max(0, self.sizes.target_groups - informative)
        # Always take one; otherwise the node could not see that peers catch up.
        return max(min(1, room), round(self.worth * room))

    @property
    def worth(self) -> float:
        return self.lead.worth


class UniformSelection(Selection):
    """Takes at most J groups, as SAPO does (arXiv 2509.08721, section 3 and setup)."""

    @property
    def slots(self) -> int:
        return self.sizes.local + self.sizes.external

    def room(self, informative: int) -> int:
        return self.sizes.external
