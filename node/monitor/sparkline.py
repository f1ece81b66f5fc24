"""A series of figures as one line of bars."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

BARS = "▁▂▃▄▅▆▇█"
PLAIN_BARS = "_.:-=+*#"
"""For encodings that lack the others."""


def bars_for(console: Console) -> str:
    """The bars that ``console`` can show."""
    try:
        BARS.encode(console.encoding)
    except UnicodeEncodeError:
        return PLAIN_BARS
    return BARS


def sparkline(values: Sequence[float], width: int, bars: str = BARS) -> str:
    """``values`` averaged into at most ``width`` bars, from zero to their maximum."""
    if not values:
        return ""
    size = -(-len(values) // width)
    chunks = [values[i : i + size] for i in range(0, len(values), size)]
    means = [sum(chunk) / len(chunk) for chunk in chunks]
    return bar_row(means, max(means), bars)


def bar_row(values: Sequence[float | None], top: float, bars: str = BARS) -> str:
    """A bar a value, from zero to ``top``; a blank where there is none."""
    highest = len(bars) - 1
    return "".join(
        " " if value is None else bars[round(max(0.0, value) / (top or 1.0) * highest)]
        for value in values
    )
