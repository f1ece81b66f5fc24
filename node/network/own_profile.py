"""What this node tells others of itself: nothing, unless its configuration names it."""

from __future__ import annotations

import importlib.metadata

from node.config.sections import ProfileSection
from protocol.profile import MAX_VERSION, Profile

DISTRIBUTION = "swarm-node"


def own_profile(told: ProfileSection, model: str, now: float) -> Profile | None:
    """The profile that a configuration asks for; None where it has neither name nor line.

    Args:
        model: as peers see it, printable ASCII; empty for a node that trains none.
        now: unix time, seconds.
    """
    if not (told.name or told.line):
        return None
    return Profile(told.name, told.line, model, _version(), now)


def _version() -> str:
    """Of this program; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)[:MAX_VERSION]
    except importlib.metadata.PackageNotFoundError:
        return ""
