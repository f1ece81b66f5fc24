"""Numbers in sentences."""

from __future__ import annotations

UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))
ENOUGH = 2.0
"""Of a unit, before it is taken: 90 minutes are told apart from 60."""


def counted(count: int, noun: str) -> str:
    """``1 round`` or ``2 rounds``: a noun whose plural ends in s, with how many there are."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def duration(seconds: float) -> str:
    """A time as a whole number of the unit that suits it, at least one."""
    unit, size = next((u for u in reversed(UNITS) if seconds >= ENOUGH * u[1]), UNITS[0])
    return f"{max(1, round(seconds / size))} {unit}"
