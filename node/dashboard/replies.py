"""Answers as JSON, whatever stands in them, and the numbers that a request asks with."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from starlette.datastructures import QueryParams
from starlette.responses import Response

MEDIA_TYPE = "application/json"
MOST_BYTES = 4 << 20
"""Of one answer."""
TEXT = 200
"""Characters of one value of a query."""


class QueryError(ValueError):
    """A query asks for what there cannot be; the message says what to ask for."""


def plain(value: Any) -> str:
    """JSON in ASCII; what is no finite number becomes null."""
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":"))


def reply(value: Mapping[str, Any], status: int = 200) -> Response:
    """An answer of one object; one that is too long is refused instead."""
    text = plain(value)
    if len(text) > MOST_BYTES:
        return failure("that is more than one answer holds: ask for less", 413)
    return Response(text, status, media_type=MEDIA_TYPE)


def failure(words: str, status: int, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that says what is wrong."""
    return Response(plain({"error": words}), status, headers, MEDIA_TYPE)


def number(query: QueryParams, name: str, default: int, least: int, most: int) -> int:
    """A whole number of a query; one beyond the limits counts as the nearest of them.

    Raises:
        QueryError: it is no whole number.
    """
    text = query.get(name, "")
    if not text:
        return default
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 18):
        raise QueryError(f"{name}: write a whole number")
    return max(least, min(most, int(text)))


def text(query: QueryParams, name: str, most: int = TEXT) -> str:
    """A text of a query; empty where there is none.

    Raises:
        QueryError: it is too long.
    """
    found = query.get(name, "")
    if len(found) > most:
        raise QueryError(f"{name}: write at most {most} characters")
    return found


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
