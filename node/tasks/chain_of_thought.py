"""What tasks with written working have in common.

An answer is a line of steps with spaces between. Each step moves on from where the one before it
led; the answer is right when every step is allowed and the last one arrives. So there are many
right answers, they are as long as their working, and a wrong step anywhere spoils all.
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
MOST_STEPS = 1024
"""Of an answer that is looked at; the longest right one of any level is a tenth of it."""
NUMBER = "(0|[1-9][0-9]{0,8})"
"""A whole number as steps write it: ASCII digits, no leading zero, nothing that overflows."""
_NUMBER = re.compile(NUMBER)


def whole(step: str) -> int | None:
    """The whole number that a step is, if it is one."""
    return int(step) if _NUMBER.fullmatch(step) else None


class Working(ABC, Generic[State]):
    """One family, over states that steps lead from and to.

    Args:
        levels: settings of each level; every one of ``settings`` has to be there. With
            ``partial_credit = true`` a wrong answer earns up to a half, for the share of its steps
            that come before the first wrong one.

    Attributes:
        settings: what a level says, and from where to where it may go.
        version: raised whenever the same number would give another question or reward.
        evaluates_text: scoring compares and computes; it never runs an answer as code.
        levels: number of levels.

    Raises:
        ValueError: a level lacks a setting, has one too many, or one that is out of range.
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
        """Question ``number`` of a level, the same on every machine, with one right answer."""
        rng = random.Random(f"{type(self).__name__}/{number}")
        state = self.begin(rng, **self._levels[level])
        answer = " ".join(self.way(rng, state))
        question = self.question(state)
        partial = self._partial[level]
        return {"question": question, "answer": answer, "state": state, PARTIAL: partial}

    def score(self, entry: Mapping[str, Any], answer: str) -> float:
        """1 where every step is allowed and the last one arrives, else 0 or a partial credit."""
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
        """Where a question of a level with these settings begins."""

    @abstractmethod
    def question(self, state: State) -> str:
        """How it is asked, with how steps are written."""

    @abstractmethod
    def way(self, rng: random.Random, state: State) -> Iterator[str]:
        """The steps of one right answer."""

    @abstractmethod
    def move(self, state: State, step: str) -> State | None:
        """Where a step leads; None where it is not allowed."""

    @abstractmethod
    def arrived(self, state: State) -> bool:
        """Whether nothing is left to do."""
