"""From pydantic's account of a wrong config to the key, the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from pydantic import BaseModel, ValidationError

from node.errors import ConfigError


def explain(root: type[BaseModel], error: ValidationError) -> ConfigError:
    """The first thing wrong, and how many more there are."""
    details = error.errors()
    detail = details[0]
    location = [str(part) for part in detail["loc"]]
    more = f" ({len(details) - 1} more to correct after this one.)" if len(details) > 1 else ""
    if detail["type"] == "extra_forbidden":
        remedy = _known(root, location)
    else:
        message = detail["msg"].replace("Input should", "It should").rstrip(".")
        remedy = f"{message}. {_documented(root, location)}"
    return ConfigError(".".join(location), detail["input"], remedy + more)


def _known(root: type[BaseModel], location: Sequence[str]) -> str:
    *tables, last = location
    known = list(_section(root, tables).model_fields)
    close = difflib.get_close_matches(last, known, n=1)
    if close:
        return f"Unknown key: did you mean {'.'.join([*tables, close[0]])}?"
    return f"Unknown key: take it out, or use one of {', '.join(known)}."


def _documented(root: type[BaseModel], location: Sequence[str]) -> str:
    """What the key is for and its default; deeper parts of a location are items of its value."""
    if len(location) < 2:
        return f"Write it as a table: [{location[0]}]."
    field = _section(root, location[:1]).model_fields[location[1]]
    return f"{field.description} (Default: {field.default!r}.)"


def _section(root: type[BaseModel], tables: Sequence[str]) -> type[BaseModel]:
    for name in tables:
        inner = root.model_fields[name].annotation
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            raise TypeError(f"{name} is not a table")
        root = inner
    return root
