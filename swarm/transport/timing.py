"""How far away a peer is and how its clock goes."""

from __future__ import annotations

from typing import NamedTuple


class Timing(NamedTuple):
    """What one call of a peer told.

    Attributes:
        round_trip: seconds from the call to its answer.
        ahead: seconds by which the peer's clock is ahead of this machine's, give or take half of
            ``round_trip`` (RFC 5905, section 8).
    """

    round_trip: float
    ahead: float
