"""How the words of a policy become actions of a Gymnasium environment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from gymnasium import spaces

LISTED = 8
"""Actions that are named one by one to a policy; of more, the first and the last."""


class Actions(Protocol):
    """What a turn may say.

    Attributes:
        asked: that, in words for the policy.
    """

    asked: str

    def read(self, turn: str) -> Any:
        """The action that a turn names; None where it names none."""
        ...


class NamedActions:
    """The last name, in upper or lower case, that stands in a turn as a word of its own.

    Args:
        first: number of the first action.
        names: of all, in their order.
    """

    def __init__(self, first: int, names: Sequence[str]) -> None:
        self._numbers = {name.casefold(): first + n for n, name in enumerate(names)}
        words = sorted(self._numbers, key=len, reverse=True)
        self._pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, words))})(?!\w)")
        few = ", ".join(names)
        self.asked = f"Answer with {few if len(names) <= LISTED else f'{names[0]} to {names[-1]}'}"

    def read(self, turn: str) -> int | None:
        found = self._pattern.findall(turn.casefold())
        return self._numbers[found[-1]] if found else None


class TextActions:
    """The turn itself, where the space has it."""

    def __init__(self, space: Any) -> None:
        self._space = space
        self.asked = f"Answer with {space.min_length} to {space.max_length} characters"

    def read(self, turn: str) -> str | None:
        return turn if self._space.contains(turn) else None


def actions_of(space: Any, names: Sequence[str] | None) -> Actions:
    """The actions of a space, a ``Discrete`` one's by these names or by their numbers."""
    if isinstance(space, spaces.Text):
        return TextActions(space)
    numbers = range(int(space.start), int(space.start + space.n))
    return NamedActions(numbers[0], names or [str(number) for number in numbers])


def unnamed(space: Any, names: Any) -> str | None:
    """What keeps the words of a policy from being actions, if anything does."""
    if isinstance(space, spaces.Text):
        return "actions are for a Discrete space, this one takes Text" if names else None
    if not isinstance(space, spaces.Discrete):
        return f"it takes {space!r:.80}: use an environment of Text or Discrete actions"
    if space.n > 1 << 16:
        return f"it takes one of {space.n} actions: use an environment of up to 65536"
    if names is None:
        return None
    words = names if isinstance(names, list) else []
    whole = all(isinstance(each, str) and each.strip() for each in words)
    if not whole or len({each.casefold() for each in words}) != space.n:
        return f"actions: name all {space.n}, in their order, each by another word"
    return None
