"""Figures of a round that have names of their own, such as groups by author: few of many."""

from __future__ import annotations

from array import array
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


class Entries:
    """What rounds have under names, without a place for what they have not."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._rounds: array[float] = array("d")
        self._which: array[int] = array("i")
        self._values: array[float] = array("d")

    def add(self, number: int, values: Mapping[str, float]) -> None:
        """Take the values of a round, which is the latest."""
        for name, value in values.items():
            if name not in self._numbers:
                self._numbers[name] = len(self.names)
                self.names.append(name)
            self._rounds.append(number)
            self._which.append(self._numbers[name])
            self._values.append(float(value))

    def drop(self, number: int) -> None:
        """Forget what rounds from this one on have."""
        while self._rounds and self._rounds[-1] >= number:
            for column in (self._rounds, self._which, self._values):
                column.pop()

    def rows(self, rounds: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Of each entry the place of its round among these, which rise, and the place of its name
        in :attr:`names`."""
        places = np.searchsorted(rounds, np.array(self._rounds, np.float64))
        return places, np.array(self._which, np.intp)

    @property
    def values(self) -> NDArray[np.float64]:
        """Of each entry."""
        return np.array(self._values, np.float64)

    def totals(self, rounds: NDArray[np.float64], weights: NDArray[np.float64]) -> dict[str, float]:
        """By name the sum over these rounds, each counted so many times."""
        places, which = self.rows(rounds)
        summed = np.bincount(which, self.values * weights[places], minlength=len(self.names))
        return dict(zip(self.names, summed.tolist(), strict=True))

    def number(self, name: str) -> int | None:
        """The place of a name in :attr:`names`; None where no round has it."""
        return self._numbers.get(name)

    def column(self, name: str, rounds: NDArray[np.float64]) -> NDArray[np.float64]:
        """The values of one name in these rounds; NaN where there is none."""
        found = np.full(len(rounds), np.nan)
        if name in self._numbers:
            places, which = self.rows(rounds)
            ours = which == self._numbers[name]
            found[places[ours]] = self.values[ours]
        return found
