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
