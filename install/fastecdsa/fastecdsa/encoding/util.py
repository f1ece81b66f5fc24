"""Sizes of numbers."""

from __future__ import annotations


def int_bytelen(x: int) -> int:
    """Return the bytes that a number needs, 0 for 0."""
    return (x.bit_length() + 7) // 8
