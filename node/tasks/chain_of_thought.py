"""Base class of the chain-of-thought families.

An answer is a line of steps separated by spaces; each continues from the previous one. It is right
if every step is allowed and the last one arrives. Many right answers exist, and one wrong step
makes an answer wrong.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

State = TypeVar("State")

PARTIAL = "partial_credit"
HALF = 0.5
MOST_STEPS = 1024  # Steps read per answer: ten times the longest right answer of any level.
NUMBER = "(0|[1-9][0-9]{0,8})"  # ASCII digits, no leading zero, no overflow.
_NUMBER = re.compile(NUMBER)


def whole(step: str) -> int | None:
    """Parse a step as a whole number; None if it is not one."""
    return int(step) if _NUMBER.fullmatch(step) else None


class Working(ABC, Generic[State]):
    """One family, generic over the states that steps connect.

    Args:
        levels: settings of each level; each sets every key of ``settings``. With ``partial_credit =
            true``, a wrong answer earns up to 0.5, for the fraction of steps before the first wrong
            one. ``ValueError``: a setting is missing, unknown or invalid.

    Attributes:
        settings: keys of a level and their allowed ranges.
        version: raised whenever the same number would give another question or reward.
    """

    settings: ClassVar[Mapping[str, range]]
    version = "1"
    evaluates_text = False

    def __init__(self, levels: Sequence[Mapping[str, Any]]) -> None:
        for number, level in enumerate(levels):
            self._check(number, level)
        self._partial = tuple(bool(level.get(PARTIAL)) for level in levels)
        self._levels = tuple({n: level[n] for n in self.settings} for level in levels)
        self.levels = len(self._levels)

    def _check(self, number: int, level: Mapping[str, Any]) -> None:
        if level.keys() - {PARTIAL} != self.settings.keys():
            raise ValueError(f"level {number} is to set {', '.join(self.settings)}, not {level}")
        if type(level.get(PARTIAL, False)) is not bool:
            raise ValueError(f"level {number}: {PARTIAL} = {level[PARTIAL]!r}: use true or false")
        for name, allowed in self.settings.items():
            value = level[name]
            if type(value) is not int or value not in allowed:
                raise ValueError(
                    f"level {number}: {name} = {value!r}: "
                    f"use a whole number from {allowed.start} to {allowed.stop - 1}"
                )

    def draw(self, level: int, number: int) -> Mapping[str, Any]:
        """Return a numbered question and one right answer, identical on every machine."""
        rng = random.Random(f"{type(self).__name__}/{number}")
        state = self.begin(rng, **self._levels[level])
        answer = " ".join(self.way(rng, state))
        question = self.question(state)
        partial = self._partial[level]
        return {"question": question, "answer": answer, "state": state, PARTIAL: partial}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """Return 1 for a right answer, else 0 or partial credit."""
        steps = answer.split(maxsplit=MOST_STEPS)
        state: State = entry["state"]
        for number, step in enumerate(steps[:MOST_STEPS]):
            after = self.move(state, step)
            if after is None:
                return HALF * number / len(steps) if entry[PARTIAL] else 0.0
            state = after
        if len(steps) <= MOST_STEPS and self.arrived(state):
            return 1.0
        return HALF if entry[PARTIAL] and steps else 0.0

    @abstractmethod
    def begin(self, rng: random.Random, **settings: int) -> State:
        """Return the initial state of a question."""

    @abstractmethod
    def question(self, state: State) -> str:
        """Return the question, including how to write steps."""

    @abstractmethod
    def way(self, rng: random.Random, state: State) -> Iterator[str]:
        """Yield the steps of one right answer."""

    @abstractmethod
    def move(self, state: State, step: str) -> State | None:
        """Return the state after a step; None if the step is not allowed."""

    @abstractmethod
    def arrived(self, state: State) -> bool:
        """Return whether nothing is left to do."""
