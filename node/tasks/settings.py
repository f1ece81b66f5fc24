"""Checks of the settings in a task set, made before anything uses them.

The swarm creator chooses them. A reasoning-gym family takes the fields of the library's
configuration class: bounded numbers, booleans, words from a closed set, and lists of these.
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from reprlib import repr as short
from typing import Any

from node.errors import TaskSetError

NOT_OPEN = frozenset({"seed", "size", "data_file"})  # Set by sampling, or names a file.

ROOM = 10
# Maximum of a number, in multiples of the largest default of its field and the opposite end.

_LARGEST: dict[str, dict[str, float]] = {
    "basic_arithmetic": {"min_digits": 6, "max_digits": 6, "min_terms": 8, "max_terms": 8},
    "bf": {"difficulty": 3},
    "boxnet": {"max_row_num": 12, "max_column_num": 12},
    "circuit_logic": {"max_inputs": 8, "max_terms": 12},
    "countdown": {"min_numbers": 8, "max_numbers": 8},
    "cryptarithm": {"max_words": 6},
    "dice": {"num_dice": 12, "max_dice_size": 40},
    "family_relationships": {"min_family_size": 16, "max_family_size": 16},
    "futoshiki": {"min_board_size": 9, "max_board_size": 9, "min_difficulty": 3},
    "game_of_life": {"grid_size_x": 50, "grid_size_y": 50},
    "game_of_life_halting": {"grid_size_x": 40, "grid_size_y": 40, "num_oscillators": 10},
    "graph_color": {"num_colors": 8, "max_num_vertices": 40, "min_num_vertices": 40},
    "intermediate_integration": {"max_linear_degree": 8, "max_poly_degree": 6},
    "jugs": {"num_jugs": 5, "difficulty": 16},
    "kakurasu": {"max_rows": 8, "max_cols": 8, "max_retries": 1000},
    "knight_swap": {"max_nodes": 12, "max_pieces": 4, "max_attempts": 200, "max_steps": 40},
    "knights_knaves": {"n_people": 6, "depth_constraint": 4, "width_constraint": 4},
    "n_queens": {"n": 10},
    "number_sequence": {"max_complexity": 4, "max_terms": 20},
    "palindrome_partitioning": {"max_string_len": 24, "min_string_len": 24},
    "polynomial_equations": {"max_degree": 6, "max_terms": 10},
    "polynomial_multiplication": {"max_degree": 10, "max_terms": 10, "max_polynomials": 6},
    "power_function": {"max_exponent": 20, "min_exponent": 20},
    "propositional_logic": {"min_vars": 8, "max_vars": 8},
    "puzzle24": {"max_value": 50},
    "quantum_lock": {"difficulty": 20},
    "rubiks_cube": {"cube_size": 5, "max_scramble_steps": 40},
    "self_reference": {"difficulty": 10},
    "simple_integration": {"max_degree": 20, "max_terms": 12},
    "sokoban": {"max_w": 14, "max_h": 14, "max_boxes": 10, "max_depth": 100},
    "survo": {"min_board_size": 8, "max_board_size": 8, "min_empty": 20, "max_empty": 20},
    "tower_of_hanoi": {"min_disks": 10, "max_disks": 10, "max_pegs": 6},
    "tsumego": {"max_board_size": 19, "max_stones": 60},
    "zebra_puzzles": {"num_people": 7, "num_characteristics": 7},
}  # cost grows as a power or by search; above, one task may take minutes


MAX_ITEMS = 64  # Of a list. The library's longest default has 40.

PLUGIN_DEPTH = 4
PLUGIN_ITEMS = 256
PLUGIN_TEXT = 256
PLUGIN_NUMBER = 1 << 53


@dataclasses.dataclass(frozen=True, slots=True)
class Truth:
    """Setting that is ``true`` or ``false``."""

    def wants(self, value: object) -> str | None:
        """Return the remedy if ``value`` is invalid, else None."""
        return None if isinstance(value, bool) else "use true or false"


@dataclasses.dataclass(frozen=True, slots=True)
class Number:
    """Finite number from ``least`` to ``most``; whole unless ``real``."""

    least: float
    most: float
    real: bool

    def wants(self, value: object) -> str | None:
        is_number = isinstance(value, int | float) if self.real else isinstance(value, int)
        if not is_number or isinstance(value, bool):
            return f"use a {'number' if self.real else 'whole number'}"
        assert isinstance(value, int | float)
        # Compared first: an integer may be too large to convert to float.
        if not self.least <= value <= self.most or not math.isfinite(value):
            return f"use a number from {self.least:g} to {self.most:g}"
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """Setting that is one of ``words``."""

    words: tuple[str, ...]

    def wants(self, value: object) -> str | None:
        if isinstance(value, str) and value in self.words:
            return None
        return f"use one of {', '.join(map(repr, self.words))}"


@dataclasses.dataclass(frozen=True, slots=True)
class Items:
    """Setting that is a list of ``kind``."""

    kind: Word | Number

    def wants(self, value: object) -> str | None:
        if not isinstance(value, list):
            return "use a list"
        if len(value) > MAX_ITEMS:
            return f"use at most {MAX_ITEMS} items"
        for item in value:
            if remedy := self.kind.wants(item):
                return f"of each item, {remedy}"
        return None


Kind = Truth | Number | Word | Items
Kinds = Mapping[str, Kind]  # by the name of a setting


def schema(family: str, config: type) -> dict[str, Kind]:
    """Return a family's open settings; all fields of ``config`` have defaults."""
    hints = typing.get_type_hints(config)
    template = config()
    fields = {f.name: getattr(template, f.name) for f in dataclasses.fields(config)}
    names = [name for name in fields if name not in NOT_OPEN]
    kinds = {name: _kind(family, name, hints[name], fields) for name in names}
    return {name: kind for name, kind in kinds.items() if kind is not None}


def check_settings(env: str, level: int, settings: Mapping[str, Any], kinds: Kinds) -> None:
    """Raise ``TaskSetError`` for settings that are not in a family's schema."""
    for name, value in settings.items():
        if name not in kinds:
            remedy = f"no such setting is open: known are {', '.join(kinds) or 'none'}"
            raise _refusal(env, level, short(name), value, remedy)
        if problem := kinds[name].wants(value):
            raise _refusal(env, level, repr(name), value, problem)


def check_plain(env: str, level: int, settings: Mapping[str, Any]) -> None:
    """Raise ``TaskSetError`` for a package's settings that are not bounded JSON."""
    for name, value in settings.items():
        if not name.isidentifier() or len(name) > PLUGIN_TEXT:
            raise _refusal(env, level, short(name), value, "use letters, digits and _ in the name")
        if remedy := _not_plain(value, PLUGIN_DEPTH):
            raise _refusal(env, level, short(name), value, remedy)


def _kind(family: str, name: str, hint: Any, fields: Mapping[str, Any]) -> Kind | None:
    """Derive a field's type from its annotation and default; None keeps it closed."""
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
    swaps = (("min_", "max_"), ("_min", "_max"), ("lower", "upper"), ("_lb", "_ub"))
    opposites = [name.replace(a, b) for s in swaps for a, b in (s, s[::-1]) if a in name]
    ends = [fields[name], *(fields[other] for other in opposites if other in fields)]
    scale = max(abs(end) for end in ends)
    limit = _LARGEST.get(family, {}).get(name) or max(ROOM, ROOM * scale)
    return Number(-limit if min(ends) < 0 else 0, limit, real)


def _not_plain(value: object, depth: int) -> str | None:
    if isinstance(value, list):
        if not depth or len(value) > PLUGIN_ITEMS:
            return f"use lists of at most {PLUGIN_ITEMS} items, {PLUGIN_DEPTH} deep"
        return next((remedy for item in value if (remedy := _not_plain(item, depth - 1))), None)
    if isinstance(value, str):
        return None if len(value) <= PLUGIN_TEXT else f"use at most {PLUGIN_TEXT} characters"
    if isinstance(value, bool):
        return None
    return Number(-PLUGIN_NUMBER, PLUGIN_NUMBER, real=True).wants(value)


def _refusal(env: str, level: int, name: str, value: object, remedy: str) -> TaskSetError:
    return TaskSetError(f"env {env!r} level {level}: setting {name} = {short(value)}: {remedy}")
