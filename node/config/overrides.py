"""Config keys as a command line sets them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from node.errors import ConfigError, UsageError


def parse_assignments(pairs: Iterable[str]) -> dict[str, Any]:
    """``["learner.lr=1e-5"]`` to ``{"learner.lr": 1e-5}``: values are TOML, or else plain text.

    Raises:
        ConfigError: a pair is not of the form section.key=value.
    """
    assignments: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or "." not in key:
            raise ConfigError("--set", pair, "Write section.key=value, as in learner.lr=1e-5.")
        assignments[key.strip()] = _value(text.strip())
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


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
