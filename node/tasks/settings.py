"""What a catalogue may set, checked before anything acts on it.

A level's settings come from whoever founded the swarm. Each family of reasoning-gym takes the
fields of the library's own configuration class, and of those only numbers within a range, truth
values, words out of a closed set, and lists of these. No text reaches the library that the library
did not write itself.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from node.tasks.errors import CatalogueError
from node.tasks.setting_limits import NOT_OPEN, ROOM, largest

MAX_ITEMS = 64
"""Of a list. The longest default of the library has 40."""

PLUGIN_DEPTH = 4
PLUGIN_ITEMS = 256
PLUGIN_TEXT = 256
PLUGIN_NUMBER = 1 << 53


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """``true`` or ``false``."""

    def wants(self, value: object) -> str | None:
        """What is wrong with ``value``: the remedy, or None."""
        return None if isinstance(value, bool) else "use true or false"


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """A finite number from ``least`` to ``most``; a whole one unless ``real``."""

    least: float
    most: float
    real: bool

    def wants(self, value: object) -> str | None:
        """What is wrong with ``value``: the remedy, or None."""
        fits = isinstance(value, int | float) if self.real else isinstance(value, int)
        if not fits or isinstance(value, bool):
            return f"use a {'number' if self.real else 'whole number'}"
        assert isinstance(value, int | float)
        # Compared first: a whole number may be too large to become a float.
        if not self.least <= value <= self.most or not math.isfinite(value):
            return f"use a number from {self.least:g} to {self.most:g}"
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """One of ``words``."""

    words: tuple[str, ...]

    def wants(self, value: object) -> str | None:
        """What is wrong with ``value``: the remedy, or None."""
        if isinstance(value, str) and value in self.words:
            return None
        return f"use one of {', '.join(map(repr, self.words))}"


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    """A list of ``kind``."""

    kind: Word | Number

    def wants(self, value: object) -> str | None:
        """What is wrong with ``value``: the remedy, or None."""
        if not isinstance(value, list):
            return "use a list"
        if len(value) > MAX_ITEMS:
            return f"use at most {MAX_ITEMS} items"
        for item in value:
            if wrong := self.kind.wants(item):
                return f"of each item, {wrong}"
        return None


Kind = Truth | Number | Word | Items


def schema(family: str, config: type) -> dict[str, Kind]:
    """What the levels of a family may set: of the fields of its configuration, those that are open.

    Args:
        config: the library's configuration dataclass; all its fields have defaults.
    """
    hints = typing.get_type_hints(config)
    template = config()
    fields = {f.name: getattr(template, f.name) for f in dataclasses.fields(config)}
    kinds = {
        name: _kind(family, name, hints[name], fields) for name in fields if name not in NOT_OPEN
    }
    return {name: kind for name, kind in kinds.items() if kind is not None}


def check_settings(
    env: str, level: int, settings: Mapping[str, Any], kinds: Mapping[str, Kind]
) -> None:
    """Refuse settings that are not in a family's schema.

    Raises:
        CatalogueError: names the env, the level, the key, the value and what to use.
    """
    for name, value in settings.items():
        if name not in kinds:
            known = ", ".join(kinds) or "none"
            raise _refusal(
                env, level, short(name), value, f"no such setting is open: known are {known}"
            )
        if wrong := kinds[name].wants(value):
            raise _refusal(env, level, repr(name), value, wrong)


def check_plain(env: str, level: int, settings: Mapping[str, Any]) -> None:
    """Refuse settings for a package's task that are more than plain, bounded JSON.

    What they mean is for the package to check.

    Raises:
        CatalogueError: names the env, the level, the key, the value and what to use.
    """
    for name, value in settings.items():
        if not name.isidentifier() or len(name) > PLUGIN_TEXT:
            raise _refusal(env, level, short(name), value, "use letters, digits and _ in the name")
        if wrong := _not_plain(value, PLUGIN_DEPTH):
            raise _refusal(env, level, short(name), value, wrong)


def _kind(family: str, name: str, hint: Any, fields: Mapping[str, Any]) -> Kind | None:
    """What a field takes, by its annotation and its default; None for what stays closed."""
    default = fields[name]
    if typing.get_origin(hint) is typing.Literal:
        return Word(typing.get_args(hint))
    if isinstance(default, bool):
        return Truth()
    if isinstance(default, int | float):
        return _range(family, name, isinstance(default, float) or hint is float, fields)
    if isinstance(default, str):
        return Word((default,))
    if not isinstance(default, list | tuple) or not default:
        return None
    if all(type(item) is str for item in default):
        return Items(Word(tuple(dict.fromkeys(default))))
    if all(isinstance(item, int | float) for item in default):
        return Items(Number(0, ROOM, real=True))
    return None


def _range(family: str, name: str, real: bool, fields: Mapping[str, Any]) -> Number:
    """From the defaults of a field and of its other end, with room beyond."""
    ends = [fields[name], *(fields[other] for other in _other_ends(name) if other in fields)]
    scale = max(abs(end) for end in ends)
    most = largest(family, name) or max(ROOM, ROOM * scale)
    return Number(-most if min(ends) < 0 else 0, most, real)


def _other_ends(name: str) -> list[str]:
    swaps = (("min_", "max_"), ("_min", "_max"), ("lower", "upper"), ("_lb", "_ub"))
    return [name.replace(a, b) for s in swaps for a, b in (s, s[::-1]) if a in name]


def _not_plain(value: object, depth: int) -> str | None:
    if isinstance(value, list):
        if not depth or len(value) > PLUGIN_ITEMS:
            return f"use lists of at most {PLUGIN_ITEMS} items, {PLUGIN_DEPTH} deep"
        return next((wrong for item in value if (wrong := _not_plain(item, depth - 1))), None)
    if isinstance(value, str):
        return None if len(value) <= PLUGIN_TEXT else f"use at most {PLUGIN_TEXT} characters"
    if isinstance(value, bool):
        return None
    return Number(-PLUGIN_NUMBER, PLUGIN_NUMBER, real=True).wants(value)


def _refusal(env: str, level: int, name: str, value: object, remedy: str) -> CatalogueError:
    return CatalogueError(f"env {env!r} level {level}: setting {name} = {short(value)}: {remedy}")
