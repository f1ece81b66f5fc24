"""Reading a node's TOML file, with overrides from the command line."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from node.config import Config
from node.errors import ConfigError, NodeError
from node.run_folder import RunFolder


def load(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read ``path``, apply ``overrides`` (dotted key -> value) and check the whole.

    ``tasks.files`` and a ``policy.model`` that is a folder beside the file become absolute.

    Raises:
        NodeError: the file is missing or is not TOML.
        ConfigError: a key is unknown, has a wrong value, or contradicts another.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise NodeError(
            f"cannot read the config ({error.strerror})",
            path,
            "Write one with: swarm-node init, or name yours with --config.",
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(str(path), str(error), "Correct that line; the file is TOML.") from error
    return build(table, overrides, base=path.absolute().parent)


def build(
    table: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    *,
    base: Path | None = None,
) -> Config:
    """A config from plain values; relative paths are resolved against ``base``.

    Raises:
        ConfigError: as in :func:`load`.
    """
    values: dict[str, Any] = {k: dict(v) if isinstance(v, Mapping) else v for k, v in table.items()}
    for key, value in (overrides or {}).items():
        _put(values, key, value)
    try:
        config = Config.model_validate(values)
    except ValidationError as error:
        raise _explain(error.errors()[0], error.error_count()) from None
    return config if base is None else _with_paths(config, base)


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


def run_folder(path: Path, config: Config) -> RunFolder:
    """The run folder of the config read from ``path``."""
    root = path.absolute().parent / Path(config.node.run_dir).expanduser()
    return RunFolder(root.resolve())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    *tables, last = key.split(".")
    for name in tables:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise ConfigError(key, value, f"{name} is a single value and has no keys.")
        values[name] = values = dict(inner)
    values[last] = value


def _with_paths(config: Config, base: Path) -> Config:
    files = {
        name: str((base / Path(f).expanduser()).resolve()) for name, f in config.tasks.files.items()
    }
    model = config.policy.model
    folder = base / Path(model).expanduser()
    if (folder / "config.json").is_file():
        model = str(folder.resolve())
    return config.model_copy(
        update={
            "tasks": config.tasks.model_copy(update={"files": files}),
            "policy": config.policy.model_copy(update={"model": model}),
        }
    )


def _explain(detail: ErrorDetails, count: int) -> ConfigError:
    location = [str(part) for part in detail["loc"]]
    key = ".".join(location)
    more = f" ({count - 1} more after this one.)" if count > 1 else ""
    if detail["type"] == "extra_forbidden":
        return ConfigError(key, detail["input"], _unknown(location) + more)
    message = detail["msg"].replace("Input should", "It should").rstrip(".")
    return ConfigError(key, detail["input"], f"{message}.{_documented(location)}{more}")


def _unknown(location: list[str]) -> str:
    *tables, last = location
    known = list(_model(tables).model_fields)
    close = difflib.get_close_matches(last, known, n=1)
    if close:
        return f"Unknown key: did you mean {'.'.join([*tables, close[0]])}?"
    return f"Unknown key: take it out, or use one of {', '.join(known)}."


def _documented(location: list[str]) -> str:
    """What the key is for and its default, where the location names a key."""
    if len(location) < 2:
        return " It is a table of keys."
    field = _model(location[:1]).model_fields.get(location[1])
    if field is None:
        return ""
    return f" {field.description} (Default: {field.default!r}.)"


def _model(tables: list[str]) -> type[BaseModel]:
    model: type[BaseModel] = Config
    for name in tables:
        inner = model.model_fields[name].annotation
        assert isinstance(inner, type)
        model = inner
    return model
