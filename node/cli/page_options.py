"""Options of the commands that show a swarm to everybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

PublicOption = Annotated[
    str | None,
    typer.Option(
        "--public",
        metavar="HOST:PORT",
        help="Serve the page of the whole swarm there, to everybody (monitor.public).",
        show_default=False,
    ),
]
SnapshotOption = Annotated[
    Path | None,
    typer.Option(
        "--snapshot",
        metavar="DIR",
        help="Write that page to a folder, again and again, for any web host (monitor.snapshot).",
        show_default=False,
    ),
]


def page_overrides(public: str | None, snapshot: Path | None) -> dict[str, Any]:
    """Config keys that these options set."""
    overrides: dict[str, Any] = {}
    if public is not None:
        overrides["monitor.public"] = public
    if snapshot is not None:
        overrides["monitor.snapshot"] = str(snapshot.absolute())
    return overrides
