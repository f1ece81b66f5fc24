"""Whether a figure that was sampled over time grows."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """The median of the slopes between all pairs of points (Theil and Sen), per unit of time.

    Up to 29 % of the points may be anything; 0 with fewer than two times.
    """
    points = sorted(zip(times, values, strict=True))
    return median(
        [
            (later[1] - earlier[1]) / (later[0] - earlier[0])
            for place, earlier in enumerate(points)
            for later in points[place + 1 :]
            if later[0] > earlier[0]
        ]
        or [0.0]
    )


def thirds(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Medians of the values in the first and in the last third of the time.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("nothing was sampled: run it for longer")
    third = (max(times) - min(times)) / 3
    first = [v for t, v in zip(times, values, strict=True) if t <= min(times) + third]
    last = [v for t, v in zip(times, values, strict=True) if t >= max(times) - third]
    return median(first), median(last)
