"""From pydantic's account of a wrong config to the key, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from node.config.toml import toml_value
from node.errors import ConfigError
from swarm.common.util import counted

_TYPES = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "int": "an integer",
    "list": "a list",
    "model": "a table",
    "string": "text",
    "tuple": "a list",
}
_WORDS = {
    "int_from_float": "It should be an integer",
    "string_pattern_mismatch": "It is not written as it should be",
    "string_too_short": "It should not be empty",
}


def explain(root: type[BaseModel], error: ValidationError) -> ConfigError:
    """Name the first wrong value, its remedy, and how many more there are."""
    details = error.errors()
    detail = details[0]
    location = [str(part) for part in detail["loc"]]
    value = detail["input"]
    more = f" ({len(details) - 1} more to correct after this one.)" if len(details) > 1 else ""
    if detail["type"] == "extra_forbidden":
        remedy = _known(root, location, value)
        value = None if isinstance(value, Mapping) else value
    else:
        remedy = f"{wording(detail)}. {_documented(root, location)}"
    return ConfigError(".".join(location), value, remedy + more)


def wording(detail: ErrorDetails) -> str:
    """What one value should be, in the words of a TOML file instead of Python's; without an end."""
    kind, _, reason = detail["type"].rpartition("_")
    if reason in ("type", "parsing") and kind in _TYPES:
        return f"It should be {_TYPES[kind]}"
    if detail["type"] in _WORDS:
        return _WORDS[detail["type"]]
    if detail["type"] == "too_short":
        return f"It should have at least {counted(detail['ctx']['min_length'], 'item')}"
    if detail["type"] == "too_long":
        return f"It should have at most {counted(detail['ctx']['max_length'], 'item')}"
    return detail["msg"].replace("Input should", "It should").rstrip(".")


def _known(root: type[BaseModel], location: Sequence[str], value: Any) -> str:
    *tables, last = location
    known = list(_section(root, tables).model_fields)
    what = "table" if not tables and isinstance(value, Mapping) else "key"
    elsewhere = [f"{name}.{last}" for name in root.model_fields if last in _keys(root, name)]
    close = [
        ".".join([*tables, key]) for key in difflib.get_close_matches(last, known, n=1, cutoff=0.7)
    ]
    if meant := (close or elsewhere):
        return f"Unknown {what}: did you mean {meant[0]}?"
    return f"Unknown {what}: take it out, or use one of {', '.join(known)}."


def _documented(root: type[BaseModel], location: Sequence[str]) -> str:
    """What the key is for and its default; deeper parts of a location are items of its value."""
    if len(location) < 2:
        return f"Write it as a table: [{location[0]}]."
    field = _section(root, location[:1]).model_fields[location[1]]
    return f"{field.description} (Default: {toml_value(field.default)}.)"


def _keys(root: type[BaseModel], table: str) -> Mapping[str, Any]:
    return _section(root, [table]).model_fields


def _section(root: type[BaseModel], tables: Sequence[str]) -> type[BaseModel]:
    for name in tables:
        inner = root.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            raise TypeError(f"{name} is not a table")
        root = inner
    return root
