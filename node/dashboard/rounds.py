"""Every round of a run as columns, read on as the node writes it, and thinned for a chart."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from node.dashboard.growing_lines import GrowingLines
from node.monitor.history import files, parsed
from node.monitor.record import RoundRecord

LATEST = 64
"""Records that are at hand whole."""
DIGITS = 6
EXACT = ("round", "time", "policy_step")
TOTALS = ("bytes_in", "bytes_out")
MAPPINGS = ("seconds", "refused")
"""Mappings of a record whose entries are columns."""
_BETWEEN = "/"


class Rounds:
    """The columns of ``metrics.jsonl``; used by one thread at a time.

    Of rounds that were lost in a crash and done again the later record counts.

    Args:
        metrics: the file, which need not be there yet.

    Attributes:
        latest: the newest records, the newest last.
        damaged: lines that are no record, which are left out.
    """

    def __init__(self, metrics: Path) -> None:
        self._metrics = metrics
        self._lines = GrowingLines()
        self._columns: dict[str, array[float]] = {}
        self._count = 0
        self.latest: deque[RoundRecord] = deque(maxlen=LATEST)
        self.damaged = 0

    def look(self) -> list[RoundRecord]:
        """Read what was written since the last look; the records that came, the latest of them.

        Raises:
            NodeError: the file may not be read.
        """
        lines, anew = self._lines.new(files(self._metrics))
        before = self.latest[-1].round if self.latest else 0
        if anew:
            self._columns, self._count, self.damaged = {}, 0, 0
            self.latest.clear()
        came: deque[RoundRecord] = deque(maxlen=LATEST)
        for line in lines:
            try:
                record = parsed(line)
                self._add(record)
            except (ValueError, TypeError):
                self.damaged += 1
                continue
            came.append(record)
        # The file is written anew where older rounds are thinned: those are no news.
        return [each for each in came if not anew or each.round > before]

    def column(self, name: str) -> NDArray[np.float64]:
        """The values of a column, one a round; NaN where there is none. Not to be kept."""
        values = self._columns.get(name)
        if values is None:
            return np.full(self._count, np.nan)
        return np.array(values, np.float64)

    def table(self, since: int, points: int) -> dict[str, Any]:
        """The rounds after ``since`` in at most ``points`` rows, the last of them the latest round.

        A row stands for several rounds where there are more: means of what was measured, and of
        round, time, policy step and totals the last.
        """
        rounds = self.column("round")
        begin = int(np.searchsorted(rounds, since, "right"))
        edges = _edges(begin, self._count, points)
        columns: dict[str, Any] = {name: {} for name in MAPPINGS}
        for name in sorted(self._columns):
            first, _, rest = name.partition(_BETWEEN)
            last = first in (*EXACT, *TOTALS, "refused")
            digits = None if first in EXACT else DIGITS
            values = _plain(_thinned(self.column(name), edges, last=last), digits)
            if rest:
                columns[first][rest] = values
            else:
                columns[name] = values
        return {
            "first": int(rounds[begin]) if begin < self._count else 0,
            "last": int(rounds[-1]) if self._count else 0,
            "count": self._count - begin,
            "columns": columns,
        }

    def _add(self, record: RoundRecord) -> None:
        values = dict(_scalars(record))
        while self._count and self._columns["round"][-1] >= record.round:
            self._count -= 1
            for column in self._columns.values():
                column.pop()
            if self.latest:
                self.latest.pop()
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("d", [math.nan]) * self._count
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))
        self._count += 1
        self.latest.append(record)


def _scalars(record: RoundRecord) -> Iterator[tuple[str, float]]:
    for name, value in record.to_dict().items():
        if isinstance(value, int | float):
            yield name, float(value)
        elif isinstance(value, Mapping) and name in MAPPINGS:
            for key, part in value.items():
                yield f"{name}{_BETWEEN}{key}", float(part)


def _edges(begin: int, end: int, points: int) -> NDArray[np.int64]:
    """Where rows begin, and the end: the last row is the last round alone."""
    rounds = end - begin
    if rounds <= points:
        return np.arange(begin, end + 1)
    before = np.linspace(begin, end - 1, points).astype(np.int64)
    return np.append(before, end)


def _thinned(
    values: NDArray[np.float64], edges: NDArray[np.int64], *, last: bool
) -> NDArray[np.float64]:
    if last:
        return values[edges[1:] - 1]
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    total, count = sums[edges[1:]] - sums[edges[:-1]], counts[edges[1:]] - counts[edges[:-1]]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _plain(values: NDArray[np.float64], digits: int | None) -> list[float | None]:
    """For JSON: of so many digits, whole where they are whole, None where there is none."""
    short = np.round(values, 3) if digits is None else significant(values, digits)
    return [None if v != v else int(v) if v.is_integer() else v for v in short.tolist()]


def significant(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """Values of at least one, or less, with so many digits that count; larger ones are whole."""
    size = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    places = np.clip(digits - 1 - np.nan_to_num(size), 0, 15)
    scale = 10.0**places
    return np.asarray(np.round(values * scale) / scale)
