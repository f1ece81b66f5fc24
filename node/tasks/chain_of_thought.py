"""Chain-of-thought families: walking, waiting, paying, halving, climbing, adding.

An answer is a line of steps separated by spaces; each continues from the previous one. It is right
if every step is allowed and the last one arrives. Many right answers exist, and one wrong step
makes an answer wrong.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
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


class Leveled(ABC):
    """A family of this package.

    Each of the ``levels`` sets every key of ``settings`` within its range, or ``ValueError``.
    ``version`` is raised whenever the same number would give another question or reward.
    """

    settings: ClassVar[Mapping[str, range]]
    version = "1"
    evaluates_text = False

    def __init__(self, levels: Sequence[Mapping[str, Any]]) -> None:
        for number, level in enumerate(levels):
            if level.keys() - {PARTIAL} != self.settings.keys():
                names = ", ".join(self.settings)
                raise ValueError(f"level {number} is to set {names}, not {level}")
            partial = level.get(PARTIAL, False)
            if type(partial) is not bool:
                raise ValueError(f"level {number}: {PARTIAL} = {partial!r}: use true or false")
            for name, allowed in self.settings.items():
                if type(level[name]) is not int or level[name] not in allowed:
                    remedy = f"use a whole number from {allowed.start} to {allowed.stop - 1}"
                    raise ValueError(f"level {number}: {name} = {level[name]!r}: {remedy}")
        self._partial = tuple(bool(level.get(PARTIAL)) for level in levels)
        self._levels = tuple({n: level[n] for n in self.settings} for level in levels)
        self.levels = len(self._levels)


class Working(Leveled, Generic[State]):
    """One family, generic over the states that steps connect.

    With ``partial_credit = true``, a wrong answer earns up to 0.5, for the fraction of steps before
    the first wrong one.
    """

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
            next_state = self.move(state, step)
            if next_state is None:
                return HALF * number / len(steps) if entry[PARTIAL] else 0.0
            state = next_state
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


COLUMNS, ROWS = "abcdefghijklmnopqrst", "123456789"
Square = tuple[int, int]  # Column and row, from 0.


@dataclass(frozen=True, slots=True)
class Walk:
    """Current square, goal and holes of a walk."""

    here: Square
    goal: Square
    holes: frozenset[Square]


class Walking(Working[Walk]):
    """Walks from ``b2`` to ``d3``: ``c2 c3 d3`` or any other way without a hole."""

    settings: ClassVar = {"steps": range(2, 25), "holes": range(9)}  # Distance; maximum holes.

    def begin(self, rng: random.Random, **settings: int) -> Walk:
        steps = settings["steps"]
        width = rng.randint(max(1, steps - len(ROWS) + 1), min(steps, len(COLUMNS)) - 1)
        start = _place(rng, width, len(COLUMNS)), _place(rng, steps - width, len(ROWS))
        goal = (start[0][1], start[1][1])
        walk = Walk((start[0][0], start[1][0]), goal, frozenset())
        path = {walk.here, *map(_square, self.way(rng, walk))}
        spans = [range(min(ends), max(ends) + 1) for ends in zip(walk.here, goal, strict=True)]
        candidates = [(a, b) for a, b in product(*spans) if (a, b) not in path]
        holes = rng.sample(candidates, min(settings["holes"], len(candidates)))
        return replace(walk, holes=frozenset(holes))

    def question(self, state: Walk) -> str:
        holes = " ".join(map(_name, sorted(state.holes))) or "none"
        prompt = f"Walk from {_name(state.here)} to {_name(state.goal)}, holes {holes}"
        return f"{prompt}. Write down every square you step on, such as a1 a2 b2"

    def way(self, rng: random.Random, state: Walk) -> Iterator[str]:
        while not self.arrived(state):
            squares = [s for s in _ahead(state) if _open(replace(state, here=s))]
            state = replace(state, here=rng.choice(squares))
            yield _name(state.here)

    def move(self, state: Walk, step: str) -> Walk | None:
        if len(step) != 2 or step[0] not in COLUMNS or step[1] not in ROWS:
            return None
        (column, row), (to_column, to_row) = state.here, _square(step)
        distance = abs(column - to_column) + abs(row - to_row)
        if distance != 1 or (to_column, to_row) in state.holes:
            return None
        return replace(state, here=(to_column, to_row))

    def arrived(self, state: Walk) -> bool:
        return state.here == state.goal


def _place(rng: random.Random, steps: int, size: int) -> tuple[int, int]:
    low = rng.randrange(size - steps)
    return (low, low + steps) if rng.random() < 0.5 else (low + steps, low)


def _ahead(walk: Walk) -> list[Square]:
    """Return the squares one step nearer to the goal."""
    (column, row), (to_column, to_row) = walk.here, walk.goal
    squares = []
    if column != to_column:
        squares.append((column + (1 if to_column > column else -1), row))
    if row != to_row:
        squares.append((column, row + (1 if to_row > row else -1)))
    return squares


def _open(walk: Walk) -> bool:
    """Return whether steps toward the goal alone reach it."""
    squares = {walk.here} - walk.holes
    while squares and walk.goal not in squares:
        squares = {s for square in squares for s in _ahead(replace(walk, here=square))} - walk.holes
    return bool(squares)


def _name(square: Square) -> str:
    return f"{COLUMNS[square[0]]}{ROWS[square[1]]}"


def _square(name: str) -> Square:
    return COLUMNS.index(name[0]), ROWS.index(name[1])


WAITS = (5, 10, 30, 60)
DAY = 24 * 60
_TIME = re.compile("([0-9]|1[0-9]|2[0-3]):([0-5][0-9])")


@dataclass(frozen=True, slots=True)
class Progress:
    """Current number and goal; times are in minutes since midnight."""

    here: int
    goal: int


class _Progressing(Working[Progress]):
    def arrived(self, state: Progress) -> bool:
        return state.here == state.goal


class Waiting(_Progressing):
    """Waits from ``7:40`` to ``9:15``: ``8:40 9:10 9:15`` or any other way."""

    settings: ClassVar = {"minutes": range(20, DAY)}  # Maximum wait; the minimum is half.

    def begin(self, rng: random.Random, **settings: int) -> Progress:
        fives = rng.randint(settings["minutes"] // 10, settings["minutes"] // 5)
        now = rng.randrange((DAY - 5 * fives) // 5) * 5
        return Progress(now, now + 5 * fives)

    def question(self, state: Progress) -> str:
        prompt = f"Wait from {_clock_time(state.here)} to {_clock_time(state.goal)}"
        return f"{prompt}. Every wait takes 5, 10, 30 or 60 minutes. Write down the time after each"

    def way(self, rng: random.Random, state: Progress) -> Iterator[str]:
        now = state.here
        while now != state.goal:
            now += rng.choice([wait for wait in WAITS if now + wait <= state.goal][-2:])
            yield _clock_time(now)

    def move(self, state: Progress, step: str) -> Progress | None:
        match = _TIME.fullmatch(step)
        if not match:
            return None
        now = 60 * int(match[1]) + int(match[2])
        return replace(state, here=now) if now - state.here in WAITS else None


def _clock_time(minutes: int) -> str:
    return f"{minutes // 60}:{minutes % 60:02}"


_STEP = re.compile(rf"{NUMBER}-{NUMBER}={NUMBER}")
COINS = (2, 3, 5, 8, 10, 15, 20, 25, 50)  # A question has 1 and three of these.


@dataclass(frozen=True, slots=True)
class Bill:
    """Amount left to pay, and the available coins in ascending order."""

    left: int
    coins: tuple[int, ...]


class Paying(Working[Bill]):
    """Payments with any coins: of 1 2 5 20, ``27`` becomes ``27-20=7 7-5=2 2-2=0``."""

    settings: ClassVar = {"most": range(24, 2000)}  # Maximum amount; the minimum is half.

    def begin(self, rng: random.Random, **settings: int) -> Bill:
        limit = settings["most"]
        coins = sorted(rng.sample([coin for coin in COINS if coin < limit], 3))
        return Bill(rng.randint(limit // 2, limit), (1, *coins))

    def question(self, state: Bill) -> str:
        coins = " ".join(map(str, state.coins))
        return f"Pay {state.left} with coins of {coins}, one at a time. Steps are written 7-5=2"

    def way(self, rng: random.Random, state: Bill) -> Iterator[str]:
        amount = state.left
        while amount:
            coins = [coin for coin in state.coins if coin <= amount]
            coin = rng.choice([*3 * coins[-1:], *coins[-2:-1]])
            yield f"{amount}-{coin}={amount - coin}"
            amount -= coin

    def move(self, state: Bill, step: str) -> Bill | None:
        match = _STEP.fullmatch(step)
        if not match:
            return None
        before, coin, after = map(int, match.groups())
        valid = before == state.left and coin in state.coins and after == before - coin
        return replace(state, left=after) if valid and after >= 0 else None

    def arrived(self, state: Bill) -> bool:
        return state.left == 0


TAKEN = (1, 3, 7)
LOWEST = 30  # Maximum goal: the way to a large number consists of small steps only.


class Halving(_Progressing):
    """Descents from ``20`` to ``3``: ``10 7 6 3``, ``19 12 6 3`` or any other way."""

    settings: ClassVar = {"most": range(10, 100_000_000)}  # Maximum start; the minimum is half.

    def begin(self, rng: random.Random, **settings: int) -> Progress:
        limit = settings["most"]
        return Progress(rng.randint(limit // 2, limit), rng.randint(0, min(limit // 4, LOWEST)))

    def question(self, state: Progress) -> str:
        prompt = f"Bring {state.here} down to {state.goal}. Every step halves an even number"
        return f"{prompt} or takes away 1, 3 or 7. Write down every number"

    def way(self, rng: random.Random, state: Progress) -> Iterator[str]:
        current = state.here
        while current != state.goal:
            options = [number for number in _below(current) if number >= state.goal]
            current = options[0] if rng.random() < 0.5 else rng.choice(options)
            yield str(current)

    def move(self, state: Progress, step: str) -> Progress | None:
        number = whole(step)
        return None if number not in _below(state.here) else replace(state, here=number)


def _below(number: int) -> list[int]:
    """Return all numbers that one step can reach, in ascending order."""
    halves = [number // 2] if number and number % 2 == 0 else []
    return sorted(halves + [number - amount for amount in TAKEN if amount <= number])


MOST_ADDED = 5


class Climbing(_Progressing):
    """Climbs from ``4`` to ``19``: ``8 16 19``, ``9 14 19`` or any other way."""

    settings: ClassVar = {"most": range(20, 3001)}  # Maximum goal; the minimum is half.

    def begin(self, rng: random.Random, **settings: int) -> Progress:
        limit = settings["most"]
        return Progress(rng.randint(1, limit // 4), rng.randint(limit // 2, limit))

    def question(self, state: Progress) -> str:
        prompt = f"Climb from {state.here} to {state.goal}"
        return f"{prompt}. Every step doubles the number or adds 1 to 5. Write down every number"

    def way(self, rng: random.Random, state: Progress) -> Iterator[str]:
        number, goal = state.here, state.goal
        while number != goal:
            options = [2 * number] * (number > MOST_ADDED) + [number + rng.randint(1, MOST_ADDED)]
            number = min(rng.choice([n for n in options if n <= goal] or [goal]), goal)
            yield str(number)

    def move(self, state: Progress, step: str) -> Progress | None:
        number = whole(step)
        if number is None:
            return None
        allowed = number == 2 * state.here or 1 <= number - state.here <= MOST_ADDED
        return replace(state, here=number) if allowed else None


_ADDING_STEP = re.compile(rf"{NUMBER}\+{NUMBER}={NUMBER}")


class Adding(Working[tuple[int, ...]]):
    """Sums in any order: ``7 15 4`` becomes ``15+4=19 7+19=26``."""

    settings: ClassVar = {"count": range(2, 33), "most": range(1, 1000)}  # Numbers; their maximum.

    def begin(self, rng: random.Random, **settings: int) -> tuple[int, ...]:
        limit = max(settings["most"], settings["count"])
        return tuple(rng.sample(range(1, limit + 1), settings["count"]))

    def question(self, state: tuple[int, ...]) -> str:
        return f"Add up {' '.join(map(str, state))}, two numbers at a time. Steps are written 2+3=5"

    def way(self, rng: random.Random, state: tuple[int, ...]) -> Iterator[str]:
        numbers = list(state)
        while len(numbers) > 1:
            rng.shuffle(numbers)
            first, second = numbers.pop(), numbers.pop()
            numbers.append(first + second)
            yield f"{first}+{second}={first + second}"

    def move(self, state: tuple[int, ...], step: str) -> tuple[int, ...] | None:
        match = _ADDING_STEP.fullmatch(step)
        if not match:
            return None
        first, second, total = map(int, match.groups())
        numbers = list(state)
        for number in (first, second):
            if number not in numbers:
                return None
            numbers.remove(number)
        return (*numbers, total) if total == first + second else None

    def arrived(self, state: tuple[int, ...]) -> bool:
        return len(state) == 1


FAMILIES = {
    family.__name__.lower(): family
    for family in (Adding, Climbing, Halving, Paying, Waiting, Walking)
}
