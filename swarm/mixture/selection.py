"""How many external groups an update takes, and in which order an author's are looked at."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from swarm.groups import Candidate
from swarm.mixture.peer_advantage import PeersLead


class MixtureSettings(Protocol):
    """What an update is made of, in groups; the keys of a node's ``mixture`` section."""

    @property
    def local(self) -> int:
        """I, own groups that an update has in any case."""

    @property
    def external(self) -> int:
        """J, own groups that external ones spare; nothing is taken where it is zero."""

    @property
    def informative(self) -> int:
        """Groups with advantage, own and external, that an update may be filled up to."""

    @property
    def author_share(self) -> float:
        """Of an update's groups, most that one author's may be."""

    @property
    def newcomer_share(self) -> float:
        """Most that those of all authors without standing may be."""


class Selection(ABC):
    """A rule for what an update takes from outside; each has a file in ``selections/``.

    What one author, and all newcomers together, may have of an update is bounded around every rule
    (:mod:`swarm.mixture.mixture`), and so is that an author is drawn before its groups.

    Args:
        sizes: of an update.
        lead: how far peers are ahead on what they share.
        options: an instance of ``Options``, where the rule has settings of its own.

    Attributes:
        Options: those settings, a pydantic model, keys of ``mixture.select_options``; None: none.
        newest: an author's groups are drawn from so many times the room, the newest; None: all.
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
        """Groups that an update is made for, and that shares are shares of at most."""

    @abstractmethod
    def room(self, informative: int) -> int:
        """External groups that an update has room for.

        Args:
            informative: own groups in the update that have an advantage.
        """

    @property
    def worth(self) -> float:
        """How much of what proven peers offer spares the node own groups, in [0, 1]."""
        return 1.0

    def order(self, groups: Sequence[Candidate], draw: random.Random) -> list[Candidate]:
        """One author's groups in the order in which they would be taken: drawn.

        Args:
            draw: the only source of chance.
        """
        return draw.sample(groups, len(groups))


class Auto(Selection):
    """Fills an update up to so many groups that teach anything, as far as peers are worth it.

    A group whose rewards are all equal teaches nothing, and most own groups of a weak policy are of
    that kind; what sharing adds is groups that are not. So an update is filled up to a fixed number
    of informative groups, own ones first, as dynamic sampling does by generating more (DAPO, arXiv
    2503.14476, section 3.2). Where peers do worse than this policy on tasks of the same level, both
    what is taken and what it spares the node are scaled down, until the node lives on its own
    experience. Where the pool holds far more than there is room for, the draw is among the newest:
    what peers wrote long ago is no measure of them.
    """

    newest = 4

    @property
    def slots(self) -> int:
        """What an update is filled up to."""
        return self.sizes.informative

    def room(self, informative: int) -> int:
        """What own groups leave free, as far as peers are worth it."""
        if self.sizes.external == 0:
            return 0
        room = max(0, self.sizes.informative - informative)
        # One is always taken: without any, peers could never be seen to catch up.
        return max(min(1, room), round(self.worth * room))

    @property
    def worth(self) -> float:
        """As far as peers are not behind this policy."""
        return self.lead.worth


class Uniform(Selection):
    """Takes J at most, as SAPO does (arXiv 2509.08721, section 3 and its experiments' set-up)."""

    @property
    def slots(self) -> int:
        """I + J."""
        return self.sizes.local + self.sizes.external

    def room(self, informative: int) -> int:
        """J, whatever the own groups are."""
        return self.sizes.external
