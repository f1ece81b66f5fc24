"""What ``swarm-node`` says of itself: where to begin, and what it is made of."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

BEGINNING = """\
see a swarm learn here:  swarm-node demo
take part in one:        swarm-node init my-node; swarm-node join --config my-node --peers ADDRESS
read on:                 swarm-node --help, and docs/tutorial.md of the source"""

TRANSPORTS = ("hivemind", "libp2p")
"""Packages over which nodes meet; one is enough."""


def versions() -> str:
    """Lines with the versions of the program and of what decides how it behaves.

    Read from the metadata of installed packages: nothing is imported.
    """
    transports = ", ".join(f"{name} {found}" for name in TRANSPORTS if (found := _installed(name)))
    rows = {
        "swarm-node": _installed("swarm-node") or "a source tree that is not installed",
        "Python": platform.python_version(),
        "torch": _installed("torch") or "not installed",
        "transport": transports or "none installed",
    }
    return "\n".join(f"{name:<10} {value}" for name, value in rows.items())


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
