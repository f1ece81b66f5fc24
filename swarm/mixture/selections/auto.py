"""As many external groups as fill an update up with what teaches."""

from __future__ import annotations

from swarm.mixture.selection import Selection


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
