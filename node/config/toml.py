"""A config as TOML in which every key is explained, and as a reference page."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo

WIDTH = 96
_TYPES = {bool: "true or false", int: "integer", float: "number", str: "text"}
_BOUNDS = {Ge: ("ge", "at least"), Gt: ("gt", "above"), Le: ("le", "at most"), Lt: ("lt", "below")}


def commented(config: BaseModel, title: str) -> str:
    """``config`` as TOML; reading it back gives an equal config."""
    lines = [f"# {title}", "# Every key is here; one that you leave out has its default.", ""]
    for name in type(config).model_fields:
        section = getattr(config, name)
        lines += [f"# {_purpose(section)}", f"[{name}]", ""]
        for key, field in type(section).model_fields.items():
            about = f"{field.description} ({_values(field)})"
            lines += textwrap.wrap(about, WIDTH, initial_indent="# ", subsequent_indent="# ")
            lines += [f"{key} = {toml_value(getattr(section, key))}", ""]
    return "\n".join(lines)


def reference(config: BaseModel) -> str:
    """The reference page: a table of keys for each section, with the values in ``config``."""
    lines = [
        "# Configuration",
        "",
        "Made from the config classes by `python -m node.config.reference`; change those instead.",
        "`swarm-node init` writes a file with every key, and `--set section.key=value` overrides",
        "one for a single run. Unknown keys and impossible values are refused.",
        "",
    ]
    for name in type(config).model_fields:
        section = getattr(config, name)
        lines += [f"## [{name}]", "", _purpose(section), "", *keys(section), ""]
    return "\n".join(lines)


def keys(section: BaseModel) -> list[str]:
    """The lines of a table of keys, with the values in ``section``."""
    lines = ["| key | default | values | what it does |", "|---|---|---|---|"]
    for key, field in type(section).model_fields.items():
        default = f"`{toml_value(getattr(section, key))}`"
        cells = (f"`{key}`", default, _values(field), field.description or "")
        lines.append(f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |")
    return lines


def toml_value(value: Any) -> str:
    """One value in TOML's notation: text, numbers, booleans, lists and inline tables.

    Raises:
        TypeError: TOML has no such value.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{toml_value(str(k))} = {toml_value(v)}" for k, v in value.items())
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, Sequence):
        return f"[{', '.join(map(toml_value, value))}]"
    raise TypeError(f"TOML has no {type(value).__name__}")


def _purpose(section: BaseModel) -> str:
    return (section.__doc__ or "").strip()


def _values(field: FieldInfo) -> str:
    """Which values a key takes, as in ``number, above 0, seconds``."""
    kind = field.annotation
    if get_origin(kind) is Literal:
        return ", ".join(toml_value(choice) for choice in get_args(kind))
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    if isinstance(choices := extra["choices"], list) and choices:
        return ", ".join([*map(toml_value, choices), "or a package's own"])
    if values := extra["values"]:
        return str(values)
    parts = [_TYPES[kind] if kind in _TYPES else _container(kind)]
    for bound in field.metadata:
        if type(bound) in _BOUNDS:
            attribute, words = _BOUNDS[type(bound)]
            parts.append(f"{words} {getattr(bound, attribute)}")
    if extra["unit"]:
        parts.append(str(extra["unit"]))
    return ", ".join(parts)


def _container(kind: Any) -> str:
    return "table" if get_origin(kind) is dict else "list"
