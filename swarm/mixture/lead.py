"""How far peers are ahead of a node on what they share, and what that is worth to it."""

from __future__ import annotations

RATE = 0.015
"""Weight of a new group: the mean is over some seventy."""
BEHIND, FAR_BEHIND = -0.05, -0.12
"""Equal policies are within 0.05 of each other but for noise; in experiments a node among weaker
ones finds their groups 0.12 to 0.2 behind."""


class PeersLead:
    """A running mean of what the authors of external groups earn more than this policy would.

    The lead of a group is its mean reward less the reward that this policy expects on its task
    (see :attr:`node.learner.update_stats.UpdateStats.lead`). Authors who do worse on their own
    tasks than this policy would have little to teach it.

    Attributes:
        value: the mean; 0 before any group was seen.
    """

    def __init__(self) -> None:
        self.value = 0.0

    def observe(self, lead: float, groups: int) -> None:
        """Take in the mean lead of some groups."""
        kept = (1.0 - RATE) ** groups
        self.value = kept * self.value + (1.0 - kept) * lead

    @property
    def worth(self) -> float:
        """From 1, where peers are no worse, down to 0, where they are far behind."""
        return min(1.0, max(0.0, (self.value - FAR_BEHIND) / (BEHIND - FAR_BEHIND)))
