"""Numbers in sentences."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """``1 round`` or ``2 rounds``: a noun whose plural ends in s, with how many there are."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
