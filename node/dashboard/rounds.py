"""A run's rounds as columns for charts, and parsing of queries, JSON replies."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import QueryParams
from starlette.responses import Response

from node.monitor.history import GrowingLines, parsed
from node.monitor.record import RoundRecord
from swarm.common.util import plain_json

Floats = NDArray[np.float64]


class Entries:
    """A sparse table of values by round and name; ``numbers`` has the index of each name."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._rounds: array[float] = array("d")
        self._which: array[int] = array("i")
        self._values: array[float] = array("d")

    def add(self, number: int, values: Mapping[str, float]) -> None:
        """Append the values of the latest round."""
        for name, value in values.items():
            self._rounds.append(number)
            self._which.append(self.numbers.setdefault(name, len(self.numbers)))
            self._values.append(float(value))

    def drop(self, number: int) -> None:
        """Remove the values of rounds from ``number`` on."""
        while self._rounds and self._rounds[-1] >= number:
            for column in (self._rounds, self._which, self._values):
                column.pop()

    def rows(self, rounds: Floats) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return each entry's index in ``rounds`` (ascending) and in :attr:`numbers`."""
        indices = np.searchsorted(rounds, np.array(self._rounds, np.float64))
        return indices, np.array(self._which, np.intp)

    @property
    def values(self) -> Floats:
        return np.array(self._values, np.float64)

    def totals(self, rounds: Floats, weights: Floats) -> dict[str, float]:
        """Return the weighted sum over these rounds by name."""
        indices, name_ids = self.rows(rounds)
        sums = np.bincount(name_ids, self.values * weights[indices], minlength=len(self.numbers))
        return dict(zip(self.numbers, sums.tolist(), strict=True))

    def column(self, name: str, rounds: Floats) -> Floats:
        """Return one name's values in these rounds; NaN where missing."""
        values = np.full(len(rounds), np.nan)
        if name in self.numbers:
            indices, name_ids = self.rows(rounds)
            mask = name_ids == self.numbers[name]
            values[indices[mask]] = self.values[mask]
        return values


# Figures that every record has a field for.
SCALARS = frozenset(each.name for each in fields(RoundRecord) if each.default_factory is MISSING)
LATEST = 64  # whole records kept in memory
DIGITS = 6
EXACT = ("round", "time", "policy_step")
TOTALS = ("bytes_in", "bytes_out")
MAPPINGS = ("seconds", "refused")  # fields whose entries become columns ``field/entry``
NAMED = ("authors", "useful", "levels")  # fields with many names, of which a round has few
_BETWEEN = "/"


class Rounds:
    """The columns of ``metrics.jsonl``, if any; not thread-safe. Later records count."""

    def __init__(self, metrics: Path) -> None:
        self._lines = GrowingLines(metrics)
        self._columns: dict[str, array[float]] = {}
        self._count = 0
        self.latest: deque[RoundRecord] = deque(maxlen=LATEST)  # the newest last
        self.named = {name: Entries() for name in NAMED}

    def look(self) -> list[RoundRecord]:
        """Read and return the new records, at most ``LATEST``, or raise NodeError."""
        lines, replaced = self._lines.new()
        last_round = self.latest[-1].round if self.latest else 0
        if replaced:
            self._columns, self._count = {}, 0
            self.named = {name: Entries() for name in NAMED}
            self.latest.clear()
        records: deque[RoundRecord] = deque(maxlen=LATEST)
        for line in lines:
            try:
                record = parsed(line)
                self._add(record)
            except (ValueError, TypeError, AttributeError):
                continue  # the line is not a record
            records.append(record)
        # Thinning rewrites the file; rounds read before are not new.
        return [each for each in records if not replaced or each.round > last_round]

    def column(self, name: str) -> Floats:
        """Return a column's values, one per round; NaN where missing."""
        values = self._columns.get(name)
        return np.full(self._count, np.nan) if values is None else np.array(values, np.float64)

    def table(self, since: int, points: int) -> dict[str, Any]:
        """Return the rounds after ``since`` in at most ``points`` rows.

        The last row is the latest round. If a row covers several rounds, it has the means of what
        was measured, and the last round, time, policy step and totals.
        """
        rounds = self.column("round")
        edges = self.edges(since, points)
        begin = int(edges[0])
        columns: dict[str, Any] = {name: {} for name in MAPPINGS}
        for name in sorted(SCALARS | self._columns.keys()):
            prefix, _, suffix = name.partition(_BETWEEN)
            use_last = prefix in (*EXACT, *TOTALS, "refused")
            digits = None if prefix in EXACT else DIGITS
            values = plain_values(thinned(self.column(name), edges, last=use_last), digits)
            if suffix:
                columns[prefix][suffix] = values
            else:
                columns[name] = values
        return {
            "first": int(rounds[begin]) if begin < self._count else 0,
            "last": int(rounds[-1]) if self._count else 0,
            "count": self._count - begin,
            "columns": columns,
        }

    def edges(self, since: int, points: int) -> NDArray[np.int64]:
        """Return where rows after ``since`` start, the latest round alone, and the end."""
        begin = int(np.searchsorted(self.column("round"), since, "right"))
        if self._count - begin <= points:
            return np.arange(begin, self._count + 1)
        return np.append(np.linspace(begin, self._count - 1, points).astype(np.int64), self._count)

    def weights(self) -> Floats:
        """Return how many rounds each represents: itself and those thinned before it."""
        return np.diff(self.column("round"), prepend=0.0)

    def _add(self, record: RoundRecord) -> None:
        scalars = ((name, getattr(record, name)) for name in SCALARS)
        values = {name: float(value) for name, value in scalars if value is not None}
        for name in MAPPINGS:
            for key, value in getattr(record, name).items():
                values[f"{name}{_BETWEEN}{key}"] = float(value)
        named = {
            name: {key: float(value) for key, value in getattr(record, name).items()}
            for name in NAMED
        }
        self._drop(record.round)
        for name, entries in self.named.items():
            entries.add(record.round, named[name])
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("d", [math.nan]) * self._count
        for name, column in self._columns.items():
            column.append(values.get(name, math.nan))
        self._count += 1
        self.latest.append(record)

    def _drop(self, begin: int) -> None:
        """Drop the rounds from ``begin`` on, which the run repeats."""
        while self._count and self._columns["round"][-1] >= begin:
            self._count -= 1
            for column in self._columns.values():
                column.pop()
            if self.latest:
                self.latest.pop()
        for entries in self.named.values():
            entries.drop(begin)


def thinned(values: Floats, edges: NDArray[np.int64], *, last: bool) -> Floats:
    """Return one value per row: the last round's or the mean; NaN if unmeasured."""
    if last:
        return values[edges[1:] - 1]
    known = ~np.isnan(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(known)])
    total, count = sums[edges[1:]] - sums[edges[:-1]], counts[edges[1:]] - counts[edges[:-1]]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def plain_values(values: Floats, digits: int | None) -> list[float | None]:
    """Round to significant digits (None: three decimals); NaN becomes None."""
    rounded = np.round(values, 3) if digits is None else significant(values, digits)
    return [None if v != v else int(v) if v.is_integer() else v for v in rounded.tolist()]


def significant(values: Floats, digits: int) -> Floats:
    """Round to ``digits`` significant digits; larger values to whole numbers."""
    exponent = np.floor(np.log10(np.where(values == 0, 1.0, np.abs(values))))
    decimals = np.clip(digits - 1 - np.nan_to_num(exponent), 0, 15)
    scale = 10.0**decimals
    return np.asarray(np.round(values * scale) / scale)


MEDIA_TYPE = "application/json"
MOST_BYTES = 4 << 20  # per response
TEXT = 200  # default maximum characters of a query value


class QueryError(ValueError):
    """An invalid query; the message says what to write."""


def plain(value: Any) -> str:
    """Encode as ASCII JSON; numbers that are not finite become null."""
    return plain_json(value, separators=(",", ":"))


def reply(value: Mapping[str, Any]) -> Response:
    """Return a JSON response, or status 413 if it is too long."""
    text = plain(value)
    if len(text) > MOST_BYTES:
        return failure("the answer would be too large: request less", 413)
    return Response(text, media_type=MEDIA_TYPE)


def failure(message: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    return Response(plain({"error": message}), status, headers, MEDIA_TYPE)


def number(query: QueryParams, name: str, default: int, least: int, most: int) -> int:
    """Read a clamped integer from a query; raise QueryError for other text."""
    text = query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise QueryError(f"{name}: write a whole number")
    return max(least, min(most, int(text)))


def text(query: QueryParams, name: str, most: int = TEXT) -> str:
    """Read a text from a query, empty if missing; raise QueryError if it is too long."""
    value = query.get(name, "")
    if len(value) > most:
        raise QueryError(f"{name}: write at most {most} characters")
    return value


SHOWN_AUTHORS = 12  # authors with their own series: those with most groups


def updates(rounds: Rounds, since: int, points: int) -> dict[str, Any]:
    """Return groups per update: local, of each of the largest authors, and of others."""
    numbers, edges = rounds.column("round"), rounds.edges(since, points)
    authors, window = rounds.named["authors"], numbers[edges[0] : edges[-1]]
    recent = (numbers > since) * rounds.weights()
    totals = {name: n for name, n in authors.totals(numbers, recent).items() if n > 0}
    largest = sorted(totals, key=lambda name: (-totals[name], name))[:SHOWN_AUTHORS]
    others = np.nan_to_num(rounds.column("groups_external"))
    series = {}
    for name in largest:
        groups = np.nan_to_num(authors.column(name, numbers))
        others = others - groups
        series[name] = plain_values(thinned(groups, edges, last=False), DIGITS)
    local = np.nan_to_num(rounds.column("groups_local"))
    return {
        "rounds": plain_values(thinned(numbers, edges, last=True), None) if len(window) else [],
        "own": plain_values(thinned(local, edges, last=False), DIGITS),
        "authors": series,
        "other": plain_values(thinned(np.maximum(others, 0.0), edges, last=False), DIGITS),
    }


def levels(rounds: Rounds, since: int, points: int) -> dict[str, Any]:
    """Return mean rewards of local completions by family and level."""
    numbers, edges, families = rounds.column("round"), rounds.edges(since, points), []
    row_ends = plain_values(thinned(numbers, edges, last=True), None) if len(edges) > 1 else []
    for name in sorted(rounds.named["levels"].numbers):
        values = thinned(rounds.named["levels"].column(name, numbers), edges, last=False)
        pairs = zip(row_ends, plain_values(values, DIGITS), strict=True)
        measured = [(end, value) for end, value in pairs if value is not None]
        env, _, level = name.rpartition("/")
        if measured and level.isdecimal():
            ends, rewards = zip(*measured, strict=True)
            families.append({"env": env, "level": int(level), "rounds": ends, "reward": rewards})
    return {"families": families}
