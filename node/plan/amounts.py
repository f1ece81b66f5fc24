"""Bytes of single numbers, and how bytes are written for people."""

from __future__ import annotations

FLOAT = 4
WIDTHS = {"float32": 4, "bfloat16": 2, "float16": 2}
MOMENTS = {"adamw": 8.0, "adamw8bit": 2.0 + 2 * FLOAT / 256}
"""Of both moments of a weight; in eight bits with a scale for each block of 256."""


def gigabytes(size: float) -> str:
    """Bytes for people."""
    return f"{size / 1e9:.1f} GB"
