"""Which version of this program is installed."""

from __future__ import annotations

import importlib.metadata

DISTRIBUTION = "swarm-node"


def version() -> str:
    """Of this program; empty in a source tree that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return ""
