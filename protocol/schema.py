"""Checks of one decoded value each: right type, right range, or ``BadSchema`` naming the field."""

from __future__ import annotations

import math
from reprlib import repr as short
from typing import cast

from protocol.errors import BadSchema, TooLarge, TooManyItems
from protocol.limits import MAX_INT


def fields(value: object, names: tuple[str, ...], where: str) -> list[object]:
    """The values of a map that has exactly these keys in this order."""
    if type(value) is not dict or tuple(value) != names:
        raise BadSchema(f"{where}: expected a map of {', '.join(names)}, got {short(value)}")
    return list(value.values())


def items(value: object, where: str, most: int, least: int = 0) -> list[object]:
    """An array of ``least`` to ``most`` elements."""
    if type(value) is not list:
        raise BadSchema(f"{where}: expected an array, got {short(value)}")
    if len(value) > most:
        raise TooManyItems(f"{where}: {len(value)} elements, limit {most}")
    if len(value) < least:
        raise BadSchema(f"{where}: {len(value)} elements, at least {least} due")
    return cast(list[object], value)


def integer(value: object, where: str, low: int = 0, high: int = MAX_INT) -> int:
    """An integer within ``low`` and ``high``, both included."""
    if type(value) is not int or not low <= value <= high:
        raise BadSchema(f"{where}: expected an integer in [{low}, {high}], got {short(value)}")
    return value


def real(value: object, where: str, low: float = -math.inf, high: float = math.inf) -> float:
    """A finite float within ``low`` and ``high``, both included."""
    if type(value) is not float or not math.isfinite(value) or not low <= value <= high:
        raise BadSchema(f"{where}: expected a float in [{low}, {high}], got {short(value)}")
    return value


def text(value: object, where: str, most: int, least: int = 0) -> str:
    """A string of ``least`` to ``most`` UTF-8 bytes."""
    if type(value) is not str:
        raise BadSchema(f"{where}: expected a string, got {short(value)}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise BadSchema(f"{where}: a lone surrogate is not text") from error
    if size > most:
        raise TooLarge(f"{where}: {size} bytes of text, limit {most}")
    if size < least:
        raise BadSchema(f"{where}: {size} bytes of text, at least {least} due")
    return value


def label(value: object, where: str, most: int) -> str:
    """A string of 1 to ``most`` printable ASCII characters: safe in a terminal and a log."""
    name = text(value, where, most, least=1)
    if not (name.isascii() and name.isprintable()):
        raise BadSchema(f"{where}: expected printable ASCII, got {short(value)}")
    return name


def blob(value: object, where: str, length: int) -> bytes:
    """A byte string of exactly ``length`` bytes."""
    if type(value) is not bytes or len(value) != length:
        raise BadSchema(f"{where}: expected {length} bytes, got {short(value)}")
    return value


def choice(value: object, where: str, among: tuple[str, ...]) -> str:
    """One of the named strings."""
    if type(value) is not str or value not in among:
        raise BadSchema(f"{where}: expected one of {', '.join(among)}, got {short(value)}")
    return value
