"""As many external groups as are asked for."""

from __future__ import annotations

from swarm.mixture.selection import Selection


class Uniform(Selection):
    """Takes J at most, as SAPO does (arXiv 2509.08721, section 3 and its experiments' set-up)."""

    @property
    def slots(self) -> int:
        """I + J."""
        return self.sizes.local + self.sizes.external

    def room(self, informative: int) -> int:
        """J, whatever the own groups are."""
        return self.sizes.external
