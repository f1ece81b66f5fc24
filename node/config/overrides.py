"""Settings that a command line gives as text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from node.errors import ConfigError, UsageError


def parse_assignments(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """``["learner.lr=1e-5"]`` to ``{"learner.lr": 1e-5}``: values are TOML, or else plain text.

    For a key that takes a text, what TOML reads as a number or the like is the text itself.

    Args:
        option: of the command line, that errors name.

    Raises:
        ConfigError: a pair is not of the form section.key=value.
    """
    assignments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        tables = key.strip().split(".")
        if not equals or len(tables) < 2 or not all(tables):
            raise ConfigError(option, pair, "Write section.key=value, as in learner.lr=1e-5.")
        value = _value(text.strip())
        textual = not isinstance(value, str) and _takes_text(key.strip())
        assignments[key.strip()] = text.strip() if textual else value
    return assignments


def parse_mix(text: str) -> tuple[int, int]:
    """``"4/4"`` to ``(4, 4)``: own and external groups in an update.

    Raises:
        UsageError: it is not two numbers with a slash between.
    """
    local, slash, external = text.partition("/")
    if not (slash and local.isdecimal() and external.isdecimal()):
        raise UsageError("--mix", text, "Write own/external groups, as in 4/4.")
    return int(local), int(external)


def _takes_text(key: str) -> bool:
    """Whether the value of a key is one string; not so for a key that does not exist."""
    from node.config.config import Config

    section, _, name = key.partition(".")
    table = Config.model_fields.get(section)
    field = getattr(table.annotation, "model_fields", {}).get(name) if table else None
    return field is not None and field.annotation is str


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
