"""How a benchmark prints what it found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def show(result: Mapping[str, Any], *, as_json: bool) -> None:
    """Print figures by name: one JSON object, or a line each in two columns."""
    if as_json:
        print(json.dumps(result))
        return
    width = max(map(len, result)) + 2
    for name, value in result.items():
        print(f"{name:{width}}{value}")
