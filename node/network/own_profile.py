"""What this node tells others of itself: nothing, unless its configuration names it."""

from __future__ import annotations

from node.config.sections import ProfileSection
from protocol.profile import MAX_VERSION, Profile
from swarm.common.util import version


def own_profile(told: ProfileSection, model: str, now: float) -> Profile | None:
    """The profile that a configuration asks for; None where it has neither name nor line.

    Args:
        model: as peers see it, printable ASCII; empty for a node that trains none.
        now: unix time, seconds.
    """
    if not (told.name or told.line):
        return None
    return Profile(told.name, told.line, model, version()[:MAX_VERSION], now)
