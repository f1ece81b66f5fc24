"""Keys that had another name, or another place, in an earlier release."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from node.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Renamed:
    """What became of a key.

    Attributes:
        key: its present name, dotted.
        of: the present value of an old one.
        where: a key and the value under which the present one is meant; left out, always.
    """

    key: str
    of: Callable[[Any], Any]
    where: tuple[str, str] | None = None


def _advantage(normalise: Any) -> Any:
    return {True: "grpo", False: "dr_grpo"}[normalise] if isinstance(normalise, bool) else normalise


def _loggers(tensorboard: Any) -> Any:
    named = {True: ["tensorboard"], False: []}
    return named[tensorboard] if isinstance(tensorboard, bool) else tensorboard


RENAMED: Mapping[str, Renamed] = {
    "engine.yields": Renamed("engine.sleep_mode", lambda sleeps: sleeps),
    "learner.normalise_std": Renamed("learner.advantage", _advantage),
    "monitor.tensorboard": Renamed("monitor.loggers", _loggers),
    "learner.tis_cap": Renamed(
        "mixture.correction_options.cap", lambda cap: cap, ("mixture.correction", "tis")
    ),
}
"""Read for one release, with a warning."""


def present(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """``values``, tables within tables, with old keys under their present names, and a warning for
    each of these.

    Raises:
        ConfigError: a key stands there under both names.
    """
    told: dict[str, Any] = dict(values)
    warnings: list[str] = []
    for old, new in RENAMED.items():
        value = _get(told, old)
        if value is None:
            continue
        table, name = old.split(".")
        told[table] = {key: kept for key, kept in told[table].items() if key != name}
        if new.where and _get(told, new.where[0]) != new.where[1]:
            warnings.append(f"{old} = {value!r} has no effect any more: take it out")
            continue
        if _get(told, new.key) is not None:
            raise ConfigError(old, value, f"It is {new.key} now, which is set too: take this out.")
        _set(told, new.key.split("."), new.of(value))
        warnings.append(f"{old} is {new.key} = {new.of(value)!r} now: write that instead")
    return told, warnings


def _get(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values.get(name) if isinstance(values, Mapping) else None
    return values


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    *tables, last = path
    for name in tables:
        inner = values.get(name, {})
        if not isinstance(inner, Mapping):
            return  # a value where a table belongs is told as such by whoever checks the whole
        values[name] = dict(inner)
        values = values[name]
    values[last] = value
