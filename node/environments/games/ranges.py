"""Bounds of settings, which whoever founded a swarm has chosen."""

from __future__ import annotations


def within(name: str, value: int, least: int, most: int) -> int:
    """The value.

    Raises:
        ValueError: it is out of its range.
    """
    if not least <= value <= most:
        raise ValueError(f"{name} = {value}: use {least} to {most}")
    return value
