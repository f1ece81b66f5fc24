"""Parsing of config values and peer ids given on the command line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from node.errors import ConfigError, UsageError

Overrides = Mapping[str, Any]  # values by dotted config key

_PEER_ID = re.compile(r"12D3KooW[A-Za-z0-9]*")
_DEEP = re.compile(r"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){64}""")
_AROUND = " \t\"'`,;.:()<>[]…"  # what text around an id or its beginning may end in


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise TOMLDecodeError also for what tomllib cannot parse in time or at all."""
    if match := _DEEP.search(text):
        line = text.count("\n", 0, match.start()) + 1
        raise tomllib.TOMLDecodeError(f"a key has over 64 parts (at line {line})")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError("it is nested too deeply") from error
    except ValueError as error:  # TOMLDecodeError is one; another is a number of 4,301 digits
        raise tomllib.TOMLDecodeError(str(error)) from error


def parse_assignments(pairs: Iterable[str], option: str = "--set") -> dict[str, Any]:
    """Parse ``["learner.lr=1e-5"]`` to ``{"learner.lr": 1e-5}``.

    Values are TOML, else text; text keys take any as written. ConfigError names ``option``.
    """
    assignments: dict[str, Any] = {}
    for pair in pairs:
        key, separator, text = pair.partition("=")
        tables = key.strip().split(".")
        if not separator or len(tables) < 2 or not all(tables):
            raise ConfigError(option, pair, "Write section.key=value, as in learner.lr=1e-5.")
        try:
            value = parse_toml(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        is_text = not isinstance(value, str) and _takes_text(key.strip())
        assignments[key.strip()] = text.strip() if is_text else value
    return assignments


def pasted_peer(text: str) -> str:
    """Return the one peer id, or its beginning, in pasted text, such as an address or a line.

    Without one it is the text without quotes and punctuation around it.
    """
    peer_ids = set(_PEER_ID.findall(text.rpartition("/p2p-circuit")[2]))
    return peer_ids.pop() if len(peer_ids) == 1 else text.strip(_AROUND)


def parse_mix(text: str) -> tuple[int, int]:
    """Parse ``"4/4"`` to ``(4, 4)``, local and peer groups, or raise UsageError."""
    local, slash, external = text.partition("/")
    if not (slash and local.isdecimal() and external.isdecimal()):
        raise UsageError("--mix", text, "Write local/peer groups, as in 4/4.")
    return int(local), int(external)


def _takes_text(key: str) -> bool:
    from node.config.config import Config

    section, _, name = key.partition(".")
    table = Config.model_fields.get(section)
    field = getattr(table.annotation, "model_fields", {}).get(name) if table else None
    return field is not None and field.annotation is str
