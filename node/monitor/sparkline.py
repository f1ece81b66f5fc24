"""A series of figures as one line of bars."""

from __future__ import annotations

from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int) -> str:
    """``values`` averaged into at most ``width`` bars, from zero to their maximum."""
    if not values:
        return ""
    size = -(-len(values) // width)
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    top = max(means) or 1.0
    return "".join(BARS[round(max(0.0, mean) / top * (len(BARS) - 1))] for mean in means)
