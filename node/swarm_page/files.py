"""The files that the swarm's page is made of, by path; all that they name is relative."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.dashboard.app import STATIC as DASHBOARD
from node.dashboard.replies import plain

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
SHARED = (
    "chart.js",
    "format.js",
    "icon.svg",
    "parts.js",
    "style.css",
    "theme.js",
    "vendor/htm-preact.js",
    "vendor/htm.LICENSE",
    "vendor/preact.LICENSE",
    "vendor/uplot.LICENSE",
    "vendor/uplot.js",
)
"""Of the dashboard's, under ``static/shared/``: imports between them stay as they are."""

Page = Mapping[str, bytes]
"""A whole page: contents by path."""


def unchanging() -> dict[str, bytes]:
    """What a page is drawn with; the same at every look.

    Raises:
        OSError: a file of this package cannot be read.
    """
    own = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*")}
    found = {
        name if name == INDEX else f"static/{name}": path.read_bytes()
        for name, path in own.items()
        if path.is_file()
    }
    shared = {f"static/shared/{name}": (DASHBOARD / name).read_bytes() for name in SHARED}
    return found | shared


def data(documents: Mapping[str, Any]) -> dict[str, bytes]:
    """Documents by name, as the files of JSON that a page reads."""
    return {f"data/{name}.json": plain(document).encode() for name, document in documents.items()}
