"""Entry points without an installer: the metadata that pip would write, in a folder on the path."""

from __future__ import annotations

from pathlib import Path

import pytest


def declare(
    patch: pytest.MonkeyPatch, folder: Path, name: str, target: str, group: str = "swarm_node.tasks"
) -> None:
    """Make ``target`` (``module:attribute``) the kind ``name`` of an installed package."""
    metadata = folder / f"{name}_kind-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-kind\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {target}\n")
    patch.syspath_prepend(folder)
